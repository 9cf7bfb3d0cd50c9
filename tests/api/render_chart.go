// Render the templates of a chart as Helm does, with Go's own text/template: render_chart.go CHART VALUES.json NAMESPACE.
// Helm's functions that the chart uses are here in short; JSON is YAML, too.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/template"
)

func main() {
	chart, namespace := os.Args[1], os.Args[3]
	var values map[string]any
	check(json.Unmarshal(read(os.Args[2]), &values))
	functions := template.FuncMap{
		"toYaml":  func(value any) (string, error) { text, err := json.Marshal(value); return string(text), err },
		"nindent": func(count int, text string) string { return "\n" + strings.Repeat(" ", count) + text },
		"ternary": func(yes, no any, condition bool) any {
			if condition {
				return yes
			}
			return no
		},
		"default": func(other, value string) string {
			if value == "" {
				return other
			}
			return value
		},
	}
	data := map[string]any{
		"Values":  values,
		"Release": map[string]any{"Namespace": namespace},
		// Everything is served, except what OMIT names.
		"Capabilities": map[string]any{"APIVersions": apiVersions(os.Getenv("OMIT"))},
		"Chart":   map[string]any{"AppVersion": os.Getenv("APP_VERSION")},
	}
	files, err := filepath.Glob(filepath.Join(chart, "templates", "*.yaml"))
	check(err)
	for _, file := range files {
		parsed, err := template.New(file).Option("missingkey=error").Funcs(functions).Parse(string(read(file)))
		check(err)
		fmt.Println("---")
		check(parsed.Execute(os.Stdout, data))
	}
}

type apiVersions string

func (omitted apiVersions) Has(name string) bool {
	return name != string(omitted)
}

func read(path string) []byte {
	content, err := os.ReadFile(path)
	check(err)
	return content
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
