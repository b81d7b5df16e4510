# Functions for hack/test.sh and hack/test-machine.sh: each part of the tests writes into one record,
# and the outermost script ends with a table of it.
#
# Lines of the record, separated by tabs:
#   part NAME RESULT SECONDS (RESULT is ok, FAILED, or "not run" after a part that failed)
#   ran  NAME TESTS
#   skip NAME TEST REASON

# As hack/build-lab.sh builds, so that the two compile a module once, and each checkout uses what
# another has compiled.
export GOFLAGS="${GOFLAGS:+$GOFLAGS }-trimpath"

# begin_record: uses the record of the calling script, or makes one whose table is printed by
# end_record.
begin_record() {
  [ -z "${BOWLINE_TEST_RECORD:-}" ] || return 0
  BOWLINE_TEST_RECORD=$(mktemp)
  export BOWLINE_TEST_RECORD
  own_record=1
}

# end_record: prints the table, if begin_record made the record, and removes it.
end_record() {
  [ "${own_record:-}" ] || return 0
  table "$BOWLINE_TEST_RECORD"
  rm -f "$BOWLINE_TEST_RECORD"
}

# record PART RESULT SECONDS
record() { printf 'part\t%s\t%s\t%d\n' "$@" >>"$BOWLINE_TEST_RECORD"; }

# gotest PART ARGUMENT...: go test with these arguments. hack/verify.sh vets the tests.
gotest() {
  local part=$1
  shift
  go test -v -vet=off "$@" 2>&1 | awk -v part="$part" -v record="$BOWLINE_TEST_RECORD" -f "$hack/gotest.awk"
}

# count PART LOG: records the tests in the log of go test -v, or of a test program with -test.v.
count() { awk -v part="$1" -v record="$BOWLINE_TEST_RECORD" -f "$hack/gotest.awk" "$2" >/dev/null; }

# table RECORD: the parts with their results, times and numbers of tests, and then the reasons why
# tests were skipped.
table() {
  awk -F '\t' '
    $1 == "part" { parts[++n] = $2; result[$2] = $3; seconds[$2] = $4 }
    $1 == "ran" { ran[$2] += $3 }
    $1 == "skip" && $4 !~ /part runs it$/ { # what another part of the suite runs is not left out
      skipped[$2]++
      key = $2 FS $4
      if (!(key in count)) { keys[++k] = key }
      if (++count[key] <= 3) { names[key] = names[key] (count[key] > 1 ? ", " : "") $3 }
    }
    END {
      if (!n) { exit }
      printf "\n%-14s %-7s %8s %6s %8s\n", "part", "result", "seconds", "tests", "skipped"
      for (i = 1; i <= n; i++) {
        p = parts[i]
        if (result[p] == "not run") { printf "%-14s not run\n", p; continue }
        printf "%-14s %-7s %8d %6s %8d\n", p, result[p], seconds[p], (p in ran ? ran[p] : "-"), skipped[p]
      }
      if (k) { printf "\nskipped\n" }
      for (i = 1; i <= k; i++) {
        split(keys[i], of, FS)
        more = count[keys[i]] - 3
        printf "  %-14s %3d  %s: %s%s\n", of[1], count[keys[i]], (of[2] == "" ? "no reason given" : of[2]), names[keys[i]], (more > 0 ? " and " more " more" : "")
      }
    }' "$1"
}
