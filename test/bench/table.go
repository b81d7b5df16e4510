package main

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/bowline-k8s/bowline/test/labtest"
)

// median returns the median of f over the repetitions; ok is false if there are none.
func median[T ~int64 | ~float64](rs []result, f func(result) T) (m T, ok bool) {
	if len(rs) == 0 {
		return 0, false
	}
	all := make([]T, len(rs))
	for i, r := range rs {
		all[i] = f(r)
	}
	slices.Sort(all)
	n := len(all)
	if n%2 == 1 {
		return all[n/2], true
	}
	return (all[n/2-1] + all[n/2]) / 2, true
}

func mib(bytes int64) string {
	if bytes == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20))
}

func percent(share float64) string { return fmt.Sprintf("%.2f %%", share*100) }

// row is one line of the table.
type row struct {
	name string
	read func(result) float64
	show func(float64) string
	bare bool // the bare CRI has it too
	idle bool // needs the idle measurements
	// Targets; zero: none.
	ofKubelet, ofBare, atMost float64
	limit                     string // atMost, for a person
}

func rows(pods int, runtime string) []row {
	memory := func(n float64) string { return mib(int64(n)) }
	return []row{
		{name: fmt.Sprintf("%d pods to all Ready", pods), read: func(r result) float64 { return r.up.Seconds() }, show: seconds,
			bare: true, ofKubelet: 0.85, ofBare: 1.15},
		{name: fmt.Sprintf("%d pods to all gone", pods), read: func(r result) float64 { return r.down.Seconds() }, show: seconds,
			bare: true, ofKubelet: 0.85, ofBare: 1.15},
		{name: "CPU of the agent for both", read: func(r result) float64 { return r.agentWork.Seconds() }, show: seconds, bare: true},
		{name: "CPU of " + runtime + " for both", read: func(r result) float64 { return r.runtimeWork.Seconds() }, show: seconds,
			bare: true, ofKubelet: 1},
		{name: "peak memory of the agent (VmHWM)", read: func(r result) float64 { return float64(r.memory) }, show: memory, atMost: 60 << 20, limit: "60 MiB"},
		{name: "idle CPU of the agent", read: func(r result) float64 { return r.idle.agent }, show: percent, idle: true, atMost: 0.01, limit: "1 % of a core"},
		{name: "idle CPU of " + runtime, read: func(r result) float64 { return r.idle.runtime }, show: percent, idle: true, ofKubelet: 1},
		{name: "idle CPU of the agent, pods with a probe", read: func(r result) float64 { return r.idleProbed.agent }, show: percent, idle: true, atMost: 0.01, limit: "1 % of a core"},
		{name: "idle CPU of " + runtime + ", pods with a probe", read: func(r result) float64 { return r.idleProbed.runtime }, show: percent, idle: true, ofKubelet: 1},
	}
}

// cells returns a row's texts; measured is false if nothing was measured.
func (r row) cells(b *bench) (cells []string, measured bool) {
	value := func(system string) (float64, bool) {
		if r.idle && b.options.idle == 0 || system == sysBare && !r.bare {
			return 0, false
		}
		return median(b.results[system], r.read)
	}
	show := func(v float64, ok bool) string {
		if !ok {
			return "-"
		}
		return r.show(v)
	}
	ratio := func(v, of float64, ok bool) string {
		if !ok || of == 0 {
			return "-"
		}
		return fmt.Sprintf("%.2f", v/of)
	}
	ours, okOurs := value(sysBowline)
	kubelet, okKubelet := value(sysKubelet)
	bare, okBare := value(sysBare)
	return []string{r.name, show(ours, okOurs), show(kubelet, okKubelet), show(bare, okBare),
		ratio(ours, kubelet, okOurs && okKubelet), ratio(ours, bare, okOurs && okBare), r.verdict(value)}, okOurs || okKubelet || okBare
}

// verdict returns the aims of the row and whether they are met. An aim relative to a system that was
// not measured is left out.
func (r row) verdict(value func(system string) (float64, bool)) string {
	ours, ok := value(sysBowline)
	if !ok {
		return ""
	}
	var aims []string
	met := true
	if r.atMost != 0 {
		aims = append(aims, "≤ "+r.limit)
		met = ours <= r.atMost
	}
	for _, of := range []struct {
		ratio        float64
		system, name string
	}{{r.ofKubelet, sysKubelet, "kubelet"}, {r.ofBare, sysBare, "bare"}} {
		theirs, ok := value(of.system)
		if of.ratio == 0 || !ok {
			continue
		}
		aim := "≤ " + of.name
		if of.ratio != 1 {
			aim = fmt.Sprintf("≤ %.2f × %s", of.ratio, of.name)
		}
		aims = append(aims, aim)
		met = met && ours <= of.ratio*theirs
	}
	if len(aims) == 0 {
		return ""
	}
	return strings.Join(aims, ", ") + map[bool]string{true: ": met", false: ": missed"}[met]
}

// writeTable writes the medians as Markdown tables.
func writeTable(w io.Writer, b *bench) {
	table := [][]string{{"", "Bowline", "kubelet", "bare CRI", "Bowline/kubelet", "Bowline/bare", "aim"}}
	for _, r := range rows(b.pods, b.runtimeName()) {
		if cells, measured := r.cells(b); measured {
			table = append(table, cells)
		}
	}
	if len(table) > 1 {
		labtest.Table(w, table)
	}
	if remote := remoteTable(b); remote != nil {
		fmt.Fprintln(w)
		labtest.Table(w, remote)
	}
	if base := baseTable(b); base != nil {
		fmt.Fprintln(w)
		labtest.Table(w, base)
	}
	if scrapes := scrapeTable(b.scrapes()); scrapes != nil {
		fmt.Fprintln(w)
		labtest.Table(w, scrapes)
	}
}

// scrapes returns the measured costs of scrapes.
func (b *bench) scrapes() []scrapeCosts {
	if len(b.results[sysSSH]) == 0 {
		return nil
	}
	return b.results[sysSSH][0].link.scrapes
}

// runtimeName is the name of the host's runtime, as its project spells it.
func (b *bench) runtimeName() string {
	if b.runtime == runtimeCRIO {
		return "CRI-O"
	}
	return b.runtime
}

// document returns the table with the text that explains it, for docs/bench.md.
func document(b *bench, table []byte) []byte {
	var d strings.Builder
	title, command := "Benchmark", "make bench"
	if b.runtime == runtimeCRIO {
		title, command = "Benchmark on CRI-O", "make bench-crio"
	}
	fmt.Fprintf(&d, "# %s\n\nWritten by `%s`; the last run was on %s.\n\n%s\n", title, command, time.Now().UTC().Format("2006-01-02 15:04 MST"), table)
	fmt.Fprintf(&d, "Medians of %d in one run, the systems in turn, each on a fresh lab host with the images present.\n\n", b.runs)
	fmt.Fprintf(&d, "    BOWLINE_BENCH_RUNS=%d BOWLINE_BENCH_IDLE=%s BOWLINE_BENCH_PODS=%d %s\n\n", b.runs, b.options.idle, b.pods, command)
	fmt.Fprintf(&d, `- The machine: %d CPUs, %s; load average at the end %s.
- Each pod has one container that only waits, a service account token, /etc/hosts and a termination log. The pods are bound when they are created. The time begins with the first request and ends with the watch event that shows the last pod Ready, or gone.
- The kubelet is that of the lab's Kubernetes. It pulls in parallel and otherwise has its defaults (110 pods, kubeAPIQPS 50, burst 100), like Bowline.
`, runtime.NumCPU(), machineName(), labtest.Load())
	if b.wants(sysBare) {
		asksUp, asksDown := b.tape.perPod()
		fmt.Fprintf(&d, `- The bare CRI is a program that decides nothing: it replays the requests that a proxy on the socket recorded from Bowline's own wave. For each pod it sends the same requests in the same order with this run's names (%d up, %d down), and makes the same mounts and cgroups. Of the concurrencies %v, it uses the best (%d pods at a time up, %d down). It makes as many writes to the API server as Bowline: for each pod %d status patches and %d events on the way up, %d and %d on the way down, %d token. Its events yield to starts, and its removals follow the deletion of the object, like Bowline's.
`, asksUp, asksDown, concurrencies, b.bestUp, b.bestDown,
			b.wroteUp.patches, b.wroteUp.events, b.wroteDown.patches, b.wroteDown.events, b.wroteUp.tokens)
	}
	fmt.Fprintf(&d, `- Over SSH: Bowline runs next to the host. A proxy on loopback forwards the connections to the host's sshd, delays the data by the given milliseconds in each direction, and counts the bytes. Each byte count is measured once, over %s, after garbage collection has removed earlier pods.
- Idle CPU is measured over %s with all pods running, from /proc. Pods with a probe have an HTTP readiness probe every 10 s.
`, linkTime, b.options.idle)
	if b.base != "" {
		fmt.Fprintf(&d, "- The earlier build is %s (BOWLINE_BENCH_BASE). In each repetition, both builds are measured one after the other; which of them is first changes each time.\n", b.baseVersion)
	}
	if len(b.scrapes()) > 0 {
		d.WriteString(scrapeNotes())
	}
	if b.with != "" {
		d.WriteString("\n" + b.with)
	}
	return []byte(d.String())
}

// machineName is the processor's model.
func machineName() string {
	data, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "unknown"
	}
	for line := range strings.Lines(string(data)) {
		if name, ok := strings.CutPrefix(line, "model name"); ok {
			return strings.TrimSpace(strings.TrimLeft(name, "\t: "))
		}
	}
	return runtime.GOARCH
}
