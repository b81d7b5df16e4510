# Reads the output of go test -v and prints what go test without -v would: a line for each package,
# and the output of a package that failed; also the tests and subtests that took 10 s or more. It
# appends to the file `record`, under the name `part`, each skipped test with its reason, and the
# number of tests that ran.

# A log line belongs to the test that the last line of === names.
/^=== / { test = $3; next }
/^ +[A-Za-z0-9_]+\.go:[0-9]+: / { said[test] = $0; sub(/^ +[^ ]+ /, "", said[test]) }
/^ *--- SKIP: / { printf "skip\t%s\t%s\t%s\n", part, $3, said[$3] >>record }
/^--- (PASS|FAIL): / { ran++ }
/^ *--- (PASS|FAIL): / {
  seconds = substr($4, 2) + 0 # of (12.30s)
  if (seconds >= 10) { slow = slow sprintf("  %7.1f s  %s\n", seconds, $3) }
}
# Compiler output may appear at any point.
/^# / || /^vet: / || /^[^ ]+\.go:[0-9]+:[0-9]+: / { print; next }
# The result line of a package follows all of its output.
/^(ok|FAIL|\?) *\t/ {
  printf "%s%s\n%s", (/^FAIL/ ? text : ""), $0, slow
  fflush()
  text = slow = ""
  split("", said)
  next
}
{ text = text $0 "\n" }
END { printf "%s", text; printf "ran\t%s\t%d\n", part, ran >>record }
