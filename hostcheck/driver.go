package hostcheck

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/bowline-k8s/bowline/syncloop/owner"
)

// drivers is what else may be managing the machine.
type drivers struct {
	kubelet   int               // pid, or 0
	held      map[string]int    // by path of a lock: the pid of a process that holds it
	holders   map[string][]byte // by path of a lock: its content, which names the holder
	file      []byte            // the owner file; nil if it does not exist
	filePath  string
	sandboxes []owner.Sandbox
	blind     bool // not examined as root: there may be more than was seen
}

// scriptDrivers prints "kubelet PID" and, for each lock of "$@" that is held, "held PID PATH". It
// does not try a lock, which would take it for a moment; fdinfo shows which process holds one.
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

// parseDrivers parses the output of scriptDrivers. Of several processes the first counts.
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

// checkDrivers uses the decision that a node itself begins with (owner.Decide). It does not know
// which node this machine shall become, so the remains of an earlier node are only a warning. The
// node managed may hold the locks.
func checkDrivers(d drivers, locks []string, managed owner.Identity, seen owner.Witnesses) []Line {
	e := owner.Evidence{FilePath: d.filePath, Sandboxes: d.sandboxes}
	e.File, e.FileErr = owner.ParseRecord(d.file)
	if e.File != nil {
		e.Self = e.File.Identity // as if that node came back
	}
	for _, p := range locks {
		if d.held[p] != 0 {
			holder, _ := owner.ParseRecord(d.holders[p]) // nil if it is not a record of ours
			if holder != nil && managed.NodeName != "" && holder.NodeName == managed.NodeName &&
				holder.Compare(managed.ClusterUID, seen) == owner.Same && d.kubelet == 0 {
				return []Line{ok(Driver, "Bowline, as expected: %s, instance %s", holder.Identity, holder.Instance)}
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
	switch decision.Kind {
	case owner.Accepted:
	case owner.OtherSandbox:
		return append(lines, Line{Warning, Driver, decision.Problem, decision.Fix})
	default:
		return append(lines, Line{Failure, Driver, decision.Problem, decision.Fix})
	}
	switch {
	case len(lines) > 0:
	case d.blind:
		lines = append(lines, Line{Warning, Driver, "only root can see which process holds the host", "fix the privileges, and check again"})
	case e.File != nil:
		lines = append(lines, Line{Warning, Driver,
			fmt.Sprintf("no running process; it is %s (owner file %s), with %s here", e.File.Identity, d.filePath, plural(decision.Ours, "pod")),
			"use the kubeconfig of that cluster and that nodeName, or remove the file if that cluster no longer uses the host"})
	case decision.Foreign > 0:
		lines = append(lines, ok(Driver, "none; %s of other programs, which Bowline does not touch", plural(decision.Foreign, "sandbox record")))
	default:
		lines = append(lines, ok(Driver, "none"))
	}
	return lines
}
