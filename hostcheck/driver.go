package hostcheck

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/bowline-k8s/bowline/syncloop/owner"
)

// drivers is who else may drive the machine.
type drivers struct {
	kubelet   int               // its process, or 0
	held      map[string]int    // by path of a lock: a process that holds it
	holders   map[string][]byte // by path of a lock: what it says of its holder
	file      []byte            // the owner file; nil if there is none
	filePath  string
	sandboxes []owner.Sandbox
	blind     bool // it was not looked at as root: what was not seen may be there
}

// scriptDrivers prints "kubelet PID" and, for each lock of "$@" that is held, "held
// PID PATH". A lock is not tried, which would take it for a moment: the kernel shows
// by descriptor who holds one.
const scriptDrivers = `grep -lsx kubelet /proc/[0-9]*/comm | while read -r f; do
	pid=${f#/proc/}
	echo "kubelet ${pid%%/*}"
done
[ -e "$1" ] || [ -e "$2" ] || exit 0
find /proc/[0-9]*/fdinfo -type f -exec grep -ls FLOCK {} + 2>/dev/null | while read -r f; do
	for lock; do
		[ "${f%/fdinfo/*}/fd/${f##*/}" -ef "$lock" ] || continue
		pid=${f#/proc/}
		echo "held ${pid%%/*} $lock"
	done
done
exit 0`

// parseDrivers reads what scriptDrivers prints; of several processes the first counts.
func parseDrivers(out string) (kubelet int, held map[string]int) {
	held = map[string]int{}
	for line := range strings.Lines(out) {
		what, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		number, lock, _ := strings.Cut(rest, " ")
		pid, err := strconv.Atoi(number)
		if err != nil || pid <= 0 {
			continue
		}
		switch {
		case what == "kubelet" && kubelet == 0:
			kubelet = pid
		case what == "held" && lock != "" && held[lock] == 0:
			held[lock] = pid
		}
	}
	return kubelet, held
}

// judgeDrivers asks the decision that a node itself begins with. Which node this
// machine is to be is not known here, so what an earlier one left is a warning. That of
// driven may hold it.
func judgeDrivers(d drivers, locks []string, driven owner.Identity, seen owner.Witnesses) []Line {
	e := owner.Evidence{FilePath: d.filePath, Sandboxes: d.sandboxes}
	e.File, e.FileErr = owner.ParseRecord(d.file)
	if e.File != nil {
		e.Self = e.File.Identity // as if it were that node that comes back
	}
	for _, p := range locks {
		if d.held[p] != 0 {
			holder, _ := owner.ParseRecord(d.holders[p]) // nil if it is not in our words
			if holder != nil && driven.NodeName != "" && holder.NodeName == driven.NodeName &&
				holder.Compare(driven.ClusterUID, seen) == owner.Same && d.kubelet == 0 {
				return []Line{ok(Driver, "Bowline, as it shall: %s, instance %s", holder.Identity, holder.Instance)}
			}
			e.Locked = &owner.Locked{Path: p, Holder: holder}
			break
		}
	}
	decision := owner.Decide(e)
	var lines []Line
	if d.kubelet != 0 {
		lines = append(lines, Line{Failure, Driver, fmt.Sprintf("a kubelet runs here (pid %d)", d.kubelet),
			"drain its node, then\nsystemctl disable --now kubelet"})
	}
	found, mend, _ := strings.Cut(decision.Sentence, "; ")
	switch decision.Kind {
	case owner.Accepted:
	case owner.OtherSandbox:
		return append(lines, Line{Warning, Driver, found, mend})
	default:
		return append(lines, Line{Failure, Driver, found, mend})
	}
	switch {
	case len(lines) > 0:
	case d.blind:
		lines = append(lines, Line{Warning, Driver, "who holds the machine can be seen by root only", "mend the rights, and check again"})
	case e.File != nil:
		lines = append(lines, Line{Warning, Driver,
			fmt.Sprintf("nobody drives it now; it is %s (owner file %s), which has %s here", e.File.Identity, d.filePath, plural(decision.Ours, "pod")),
			"use that cluster's kubeconfig and that nodeName, or remove the file if that cluster has given the machine up"})
	case decision.Foreign > 0:
		lines = append(lines, ok(Driver, "nobody; %s of somebody else, which a node leaves alone", plural(decision.Foreign, "sandbox record")))
	default:
		lines = append(lines, ok(Driver, "nobody"))
	}
	return lines
}
