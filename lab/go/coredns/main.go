// CoreDNS with only the plug-ins the lab's Corefile names: the full set doubles the build.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"

	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/reload"
)

// The order of the chain, not of the Corefile: a cache behind the zone would never be asked.
func init() {
	dnsserver.Directives = []string{"reload", "health", "ready", "errors", "cache", "kubernetes"}
}

func main() { coremain.Run() }
