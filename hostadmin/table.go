package hostadmin

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/cli-runtime/pkg/printers"

	"github.com/bowline-k8s/bowline/api/v1alpha1"
	"github.com/bowline-k8s/bowline/pod"
)

// table is rows of cells; the first row has the headings. Its text is printable, even if a cell
// comes from a machine or container.
type table [][]string

func (t table) String() string {
	var b strings.Builder
	w := printers.GetNewTabWriter(&b)
	for _, row := range t {
		cells := make([]string, len(row))
		for i := range row {
			cells[i] = pod.Printable(row[i])
		}
		fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	_ = w.Flush() // a strings.Builder does not fail
	lines := strings.Split(b.String(), "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return strings.Join(lines, "\n")
}

func age(t metav1.Time, now time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return duration.HumanDuration(now.Sub(t.Time))
}

// HostTable is the output of "host list"; wide adds the endpoint and the runtime.
func HostTable(list *v1alpha1.HostList, now time.Time, wide bool) string {
	if len(list.Items) == 0 {
		return "No hosts found.\n"
	}
	t := table{{"NAME", "NODE", "READY", "LINK", "RTT", "PODS", "REASON", "AGE"}}
	if wide {
		t[0] = append(t[0], "ENDPOINT", "RUNTIME")
	}
	for _, item := range slices.SortedFunc(slices.Values(list.Items), func(a, b v1alpha1.Host) int { return strings.Compare(a.Name, b.Name) }) {
		h := HostView{Host: &item}
		pods := "-"
		if p := h.Host.Status.Pods; p != nil {
			pods = strconv.Itoa(int(*p))
		}
		row := []string{h.Host.Name, cmp.Or(h.Host.Status.NodeName, "-"), h.ready(), h.link(), h.rtt(), pods, h.reason(), age(h.Host.CreationTimestamp, now)}
		if wide {
			runtime := "-"
			if r := h.Host.Status.Runtime; r != nil {
				runtime = r.Name + "://" + r.Version
			}
			row = append(row, h.Host.Spec.Endpoint, runtime)
		}
		t = append(t, row)
	}
	return t.String()
}

// ready is the status of the Host's condition Ready.
func (h *HostView) ready() string {
	if c := meta.FindStatusCondition(h.Host.Status.Conditions, v1alpha1.ConditionReady); c != nil {
		return string(c.Status)
	}
	return "-"
}

func (h *HostView) rtt() string {
	if h.Host == nil || h.Host.Status.Link == nil {
		return "-"
	}
	return cmp.Or(h.Host.Status.Link.RoundTrip, "-")
}

// counts sums up the pods of a node.
type counts struct{ pods, ready, restarts int }

// Text is the output of "top": the hosts, then their pods.
func (v *View) Text(now time.Time) string {
	onNode := map[string]*counts{}
	pods := table{{"NAMESPACE", "POD", "NODE", "READY", "STATUS", "RESTARTS", "AGE", "IP"}}
	for i := range v.Pods {
		p := &v.Pods[i]
		n := onNode[p.Spec.NodeName]
		if n == nil {
			n = &counts{}
			onNode[p.Spec.NodeName] = n
		}
		ready, restarts, last := 0, 0, time.Time{}
		for _, c := range p.Status.ContainerStatuses {
			if c.Ready {
				ready++
			}
			restarts += int(c.RestartCount)
			if s := c.LastTerminationState.Terminated; s != nil && s.FinishedAt.After(last) {
				last = s.FinishedAt.Time
			}
		}
		n.pods++
		n.restarts += restarts
		if podReady(p) {
			n.ready++
		}
		times := strconv.Itoa(restarts)
		if restarts > 0 && !last.IsZero() {
			times += " (" + duration.HumanDuration(now.Sub(last)) + " ago)"
		}
		pods = append(pods, []string{p.Namespace, p.Name, p.Spec.NodeName, fmt.Sprintf("%d/%d", ready, len(p.Spec.Containers)), podState(p),
			times, age(p.CreationTimestamp, now), cmp.Or(p.Status.PodIP, "-")})
	}
	hosts := table{{"HOST", "NODE", "READY", "LINK", "RTT", "PODS", "RESTARTS", "RUNTIME", "AGE", "REASON"}}
	for i := range v.Hosts {
		h := &v.Hosts[i]
		row := []string{h.Name, "-", "-", h.link(), h.rtt(), "-", "-", "-", "-", h.reason()}
		if h.Host != nil {
			row[8] = age(h.Host.CreationTimestamp, now)
		}
		if h.Node != nil {
			n := cmp.Or(onNode[h.Node.Name], &counts{})
			row[1] = h.Node.Name
			if c := condition(h.Node, v1.NodeReady); c != nil {
				row[2] = string(c.Status)
			}
			row[5], row[6] = fmt.Sprintf("%d/%d", n.ready, n.pods), strconv.Itoa(n.restarts)
			row[7] = cmp.Or(h.Node.Status.NodeInfo.ContainerRuntimeVersion, "-")
			if h.Host == nil {
				row[8] = age(h.Node.CreationTimestamp, now)
			}
		}
		hosts = append(hosts, row)
	}
	if len(v.Hosts) == 0 {
		return "No hosts found.\n"
	}
	if len(v.Pods) == 0 {
		return hosts.String() + "\nNo pods on these hosts.\n"
	}
	return hosts.String() + "\n" + pods.String()
}

func podReady(p *v1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == v1.PodReady {
			return c.Status == v1.ConditionTrue
		}
	}
	return false
}

// podState is the pod's status in one word: the waiting reason of a container, or the pod's phase.
func podState(p *v1.Pod) string {
	state := cmp.Or(p.Status.Reason, string(p.Status.Phase))
	for c := range pod.Statuses(&p.Status) {
		if w := c.State.Waiting; w != nil && w.Reason != "" && w.Reason != "PodInitializing" {
			state = w.Reason
		}
	}
	if p.DeletionTimestamp != nil {
		state = "Terminating"
	}
	return state
}

// Clip writes as much of text as fits into rows and columns, and says how many lines are left out.
func Clip(w io.Writer, text string, rows, columns int) error {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	if rows > 1 && len(lines) > rows {
		more := len(lines) - (rows - 1)
		lines = append(lines[:rows-1:rows-1], fmt.Sprintf("… %d more lines", more))
	}
	for i, l := range lines {
		if r := []rune(l); columns > 1 && len(r) > columns {
			lines[i] = string(r[:columns-1]) + "…"
		}
	}
	_, err := io.WriteString(w, strings.Join(lines, "\n"))
	return err
}
