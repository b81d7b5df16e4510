package main

import (
	"fmt"
	"io"
	"runtime"
	"time"

	"github.com/bowline-k8s/bowline/test/labtest"
)

// The targets, at the largest number of hosts.
const (
	memoryAim = int64(3) << 29 // 1.5 GiB
	cpuAim    = 1.5            // cores
	slowerAim = 1.1            // p99 with half-open hosts, relative to that without
	// linearAim limits how much more a host with its pods may cost in the last step than in the
	// cheapest one.
	linearAim = 1.25
)

func verdict(met bool) string {
	if met {
		return "met"
	}
	return "missed"
}

func kib(bytes float64) string { return fmt.Sprintf("%.0f KiB", bytes/(1<<10)) }

// cost is what each host, with its pods, added in a step.
type cost struct {
	host, pod float64 // bytes
	cpu       float64 // of one core, for a host with its pods
}

// costs returns the added cost of each step over the previous one; the first is compared with a
// process that manages one host without pods.
func (c *rig) costs() []cost {
	var all []cost
	before, cpu, hosts := c.empty, 0.0, 1
	for _, s := range c.steps {
		added := float64(s.hosts - hosts)
		filled := added
		if hosts == 1 {
			filled = float64(s.hosts) // the first host gets its pods with the others
		}
		all = append(all, cost{
			host: float64(s.bare.memory-before) / max(added, 1),
			pod:  float64(s.full.memory-s.bare.memory) / (filled * float64(c.pods)),
			cpu:  (s.full.cpu - cpu) / filled,
		})
		before, cpu, hosts = s.full.memory, s.full.cpu, s.hosts
	}
	return all
}

// tables prints the measurements, and reports whether a target is missed.
func (c *rig) tables(w io.Writer) (missed bool) {
	table := [][]string{{"hosts", "pods", "memory without the last hosts' pods", "memory", "idle CPU, cores", "a host more costs", "a pod more costs", "a host more with its pods costs"}}
	costs := c.costs()
	for i, s := range c.steps {
		each := costs[i]
		table = append(table, []string{fmt.Sprint(s.hosts), fmt.Sprint(s.pods), mib(s.bare.memory), mib(s.full.memory), fmt.Sprintf("%.3f", s.full.cpu),
			kib(each.host), kib(each.pod), fmt.Sprintf("%s, %.2f %% of a core", kib(each.host+each.pod*float64(c.pods)), 100*each.cpu)})
	}
	labtest.Table(w, table)
	last := c.steps[len(c.steps)-1]
	aims := [][]string{{"aim", "measured", ""}}
	aim := func(what, measured string, met bool) {
		missed = missed || !met
		aims = append(aims, []string{what, measured, verdict(met)})
	}
	of := fmt.Sprintf("%d hosts of %d pods", last.hosts, c.pods)
	aim(of+" in 1.5 GiB", mib(last.full.memory), last.full.memory < memoryAim)
	aim(of+" idle in 1.5 cores", fmt.Sprintf("%.2f cores", last.full.cpu), last.full.cpu < cpuAim)
	if len(costs) > 1 {
		whole := func(c1 cost) float64 { return c1.host + c1.pod*float64(c.pods) }
		least := whole(costs[0])
		for _, each := range costs {
			least = min(least, whole(each))
		}
		ratio := whole(costs[len(costs)-1]) / least
		aim(fmt.Sprintf("linear: the last hosts cost at most %.2f × the cheapest", linearAim), fmt.Sprintf("%.2f ×", ratio), ratio <= linearAim)
	}
	aim("one watch of Services, of which there are "+fmt.Sprint(c.services)+", for all hosts", fmt.Sprint(c.watches), c.watches == 1)
	if with, without := c.joined(true), c.joined(false); len(with) > 0 {
		ratio := float64(percentile(with, 0.99)) / float64(percentile(without, 0.99))
		aim(fmt.Sprintf("p99 of a pod's start with %d black-holed links, on the other hosts: at most %.1f × that with none", c.silent, slowerAim),
			fmt.Sprintf("%s and %s: %.2f × (p50 %s and %s)", ms(percentile(with, 0.99)), ms(percentile(without, 0.99)), ratio,
				ms(percentile(with, 0.5)), ms(percentile(without, 0.5))), ratio <= slowerAim)
	}
	fmt.Fprintln(w)
	labtest.Table(w, aims)
	return missed
}

func ms(d time.Duration) string { return fmt.Sprintf("%d ms", d.Milliseconds()) }

// document returns the tables with the text that explains them, for docs/bench-pool.md.
func (c *rig) document(tables []byte) []byte {
	return fmt.Appendf(nil, `# One process, many hosts

Written by `+"`make bench-pool`"+`; the last run was on %s.

%s
- The machine: %d CPUs, which the API server, etcd, the fakes, two sshd of each host and the measured process share.
- Pods are created %d at a time, the next ones as these become Ready.
- Each host is a host of the lab with separate namespaces and a separate sshd, which Bowline reaches over loopback SSH. Its container runtime is a fake in a process other than Bowline's. Each pod has one container that only waits, and a service account token.
- The cluster has %d Services in %d namespaces, none of them in the pods' namespace.
- Memory is the resident memory (VmRSS) %s after the last change. Idle CPU is read from /proc over the %s after that. The cost of a host is the increase by a step's hosts before they had pods, the cost of a pod the increase by their pods.
- Starts are timed %d at a time, from the request to the event that shows the pod Ready, in four rounds of %d: all links good, then %d links black-holed from the round's beginning, and both again.
`, time.Now().UTC().Format("2006-01-02 15:04 MST"), tables, runtime.NumCPU(), fillAtOnce, c.services, serviceNamespaces, settleTime, c.idle, atOnce, c.starts, c.silent)
}
