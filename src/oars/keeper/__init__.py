"""The keeper: a small process beside a local cluster that runs the loop, so that a busy or dead user process neither
stalls healing nor leaves orphans."""
