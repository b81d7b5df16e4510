package status

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/pod"
)

var update = flag.Bool("update", false, "rewrite the golden output in testdata")

// TestScripts plays testdata/*.txt. A script declares a pod, then observations; each "status"
// passes the status before it back as Old, and prints the new one before the next command. Output
// lines begin with "| ".
//
//	pod restart=Never gates=a,b hostnetwork deleted=10
//	init NAME | sidecar NAME [startup] [readiness] | main NAME [startup] [readiness] [restart=P] [rule=CODE]
//	now SECONDS            worker PHASE           stale WHY
//	sandbox ready|notready [IP...]                (replaces)
//	run NAME#ATTEMPT       created NAME#ATTEMPT   exit NAME#ATTEMPT CODE [REASON [MESSAGE]]
//	unknown NAME#ATTEMPT   gone NAME              (every instance)
//	verdict NAME#ATTEMPT STARTUP READINESS        (U, S or F)
//	wait NAME [REASON [MESSAGE]]                  (without a reason: not any more)
//	awaits WORDS [NAME...]                        (replaces)
//	again NAME#ATTEMPT                            (it was stopped to be started again; replaces)
//	holds sandbox|nothing                         (Input.HoldsSandbox)
//	terminate REASON [disruption|rejected]                 condition TYPE STATUS
//	restarted                                     (our process: Old is lost, the API server keeps its copy)
//	status
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".txt"), func(t *testing.T) {
			data := testutil.ReadFile(t, f)
			got := newScript().play(t, string(data))
			if *update {
				testutil.Must(t, os.WriteFile(f, []byte(got), 0o644))
				return
			}
			if d := cmp.Diff(string(data), got); d != "" {
				t.Errorf("output differs (-want +got); -update rewrites it:\n%s", d)
			}
		})
	}
}

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

type script struct{ in Input }

func newScript() *script {
	always := v1.RestartPolicyAlways
	return &script{in: Input{
		Now: epoch,
		Pod: &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: types.UID("uid"), Generation: 1},
			Spec:       v1.PodSpec{RestartPolicy: always},
			Status:     v1.PodStatus{Phase: v1.PodPending, QOSClass: v1.PodQOSBestEffort},
		},
		Observed: pod.Observed{Seq: 1},
		Waiting:  map[string]Waiting{},
		Verdicts: map[string]pod.Verdicts{},
		HostIPs:  []string{"192.0.2.1"},
	}}
}

func (s *script) play(t *testing.T, text string) string {
	var out strings.Builder
	for _, line := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		if strings.HasPrefix(line, "| ") {
			continue
		}
		out.WriteString(line + "\n")
		f := strings.Fields(line)
		if len(f) == 0 || strings.HasPrefix(line, "#") {
			continue
		}
		if f[0] == "status" {
			st := Generate(s.in)
			again := s.in
			again.Old, again.Now = st, again.Now.Add(time.Hour)
			if d := cmp.Diff(st, Generate(again)); d != "" {
				t.Errorf("not idempotent at %q:\n%s", line, d)
			}
			s.in.Old = st
			s.in.Pod = s.in.Pod.DeepCopy()
			s.in.Pod.Status = Merge(s.in.Pod.Status, st)
			for _, l := range render(&st) {
				out.WriteString("| " + l + "\n")
			}
			continue
		}
		if err := s.do(f); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
	}
	return out.String()
}

func (s *script) do(f []string) error {
	p, o := s.in.Pod, &s.in.Observed
	arg := func(i int) string {
		if i < len(f) {
			return f[i]
		}
		return ""
	}
	switch f[0] {
	case "pod":
		for _, a := range f[1:] {
			k, v, _ := strings.Cut(a, "=")
			switch k {
			case "restart":
				p.Spec.RestartPolicy = v1.RestartPolicy(v)
			case "gates":
				for _, g := range strings.Split(v, ",") {
					p.Spec.ReadinessGates = append(p.Spec.ReadinessGates, v1.PodReadinessGate{ConditionType: v1.PodConditionType(g)})
				}
			case "hostnetwork":
				p.Spec.HostNetwork = true
			case "deleted":
				at := metav1.NewTime(epoch)
				p.DeletionTimestamp = &at
			default:
				return fmt.Errorf("unknown %q", k)
			}
		}
	case "init", "sidecar", "main", "ephemeral":
		c := v1.Container{Name: f[1], Image: "img:" + f[1]}
		for _, a := range f[2:] {
			switch k, v, _ := strings.Cut(a, "="); k {
			case "startup":
				c.StartupProbe = &v1.Probe{}
			case "readiness":
				c.ReadinessProbe = &v1.Probe{}
			case "restart":
				r := v1.ContainerRestartPolicy(v)
				c.RestartPolicy = &r
			case "rule":
				code, all, _ := strings.Cut(v, ":")
				n, _ := strconv.Atoi(code)
				does := v1.ContainerRestartRuleActionRestart
				if all == "all" {
					does = v1.ContainerRestartRuleActionRestartAllContainers
				}
				c.RestartPolicyRules = append(c.RestartPolicyRules, v1.ContainerRestartRule{
					Action:    does,
					ExitCodes: &v1.ContainerRestartRuleOnExitCodes{Operator: v1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{int32(n)}},
				})
			}
		}
		switch f[0] {
		case "sidecar":
			r := v1.ContainerRestartPolicyAlways
			c.RestartPolicy = &r
			fallthrough
		case "init":
			p.Spec.InitContainers = append(p.Spec.InitContainers, c)
		case "main":
			p.Spec.Containers = append(p.Spec.Containers, c)
		case "ephemeral":
			p.Spec.EphemeralContainers = append(p.Spec.EphemeralContainers, v1.EphemeralContainer{
				EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: c.Name, Image: c.Image}})
		}
	case "now":
		n, err := strconv.Atoi(f[1])
		s.in.Now = epoch.Add(time.Duration(n) * time.Second)
		return err
	case "worker":
		for s.in.Phase = pod.Syncing; s.in.Phase.String() != f[1]; s.in.Phase++ {
			if s.in.Phase > pod.Gone {
				return fmt.Errorf("no phase %q", f[1])
			}
		}
	case "stale":
		o.Stale = arg(1)
	case "sandbox":
		o.Sandboxes = []pod.Sandbox{{ID: "sb", Ready: f[1] == "ready", IPs: f[2:], HostNetwork: p.Spec.HostNetwork}}
		if f[1] == "none" {
			o.Sandboxes = nil
		}
	case "run", "created", "exit", "unknown":
		name, attempt, ok := strings.Cut(f[1], "#")
		n, err := strconv.Atoi(attempt)
		if !ok || err != nil {
			return fmt.Errorf("want NAME#ATTEMPT")
		}
		c := pod.Container{ID: f[1], Name: name, SandboxID: "sb", Attempt: uint32(n), Image: "img:" + name, ImageRef: "sha256:" + name}
		switch f[0] {
		case "run":
			c.State, c.StartedAt = pod.StateRunning, s.in.Now
		case "created":
			c.State = pod.StateCreated
		case "exit":
			code, err := strconv.Atoi(f[2])
			if err != nil {
				return err
			}
			c.State, c.ExitCode, c.Reason, c.Message, c.FinishedAt = pod.StateExited, int32(code), arg(3), arg(4), s.in.Now
		}
		s.put(c)
	case "gone":
		var keep []pod.Container
		for _, c := range o.Containers {
			if c.Name != f[1] {
				keep = append(keep, c)
			}
		}
		o.Containers = keep
	case "verdict":
		of := map[string]pod.Verdict{"U": pod.VerdictUnknown, "S": pod.VerdictSuccess, "F": pod.VerdictFailure}
		s.in.Verdicts[f[1]] = pod.Verdicts{Startup: of[f[2]], Readiness: of[f[3]], Liveness: pod.VerdictSuccess}
	case "wait":
		s.in.Waiting[f[1]] = Waiting{Reason: arg(2), Message: arg(3)}
		if arg(2) == "" {
			delete(s.in.Waiting, f[1])
		}
	case "again":
		s.in.Again = map[string]bool{f[1]: true}
	case "awaits":
		s.in.Awaits = map[string]string{}
		for _, name := range f[2:] {
			s.in.Awaits[name] = f[1]
		}
	case "terminate":
		s.in.Terminate = &Termination{Reason: f[1], Message: "because", Rejected: arg(2) == "rejected"}
		if arg(2) == "disruption" {
			s.in.Terminate.Disruption = "because"
		}
	case "holds": // holds a sandbox, or not any more
		s.in.HoldsSandbox = f[1] == "sandbox"
	case "condition":
		s.in.Pod = p.DeepCopy()
		set(&s.in.Pod.Status.Conditions, v1.PodCondition{Type: v1.PodConditionType(f[1]), Status: v1.ConditionStatus(f[2])})
	case "restarted":
		s.in.Old = v1.PodStatus{}
		s.in.Verdicts = map[string]pod.Verdicts{}
		s.in.Waiting = map[string]Waiting{}
	default:
		return fmt.Errorf("unknown command")
	}
	return nil
}

// put replaces an instance, or inserts it before the older ones of its name.
func (s *script) put(c pod.Container) {
	cs := s.in.Observed.Containers
	var out []pod.Container
	done := false
	for _, x := range cs {
		if x.ID == c.ID {
			out, done = append(out, c), true
			continue
		}
		if x.Name == c.Name && !done && x.Attempt < c.Attempt {
			out, done = append(out, c), true
		}
		out = append(out, x)
	}
	if !done {
		out = append(out, c)
	}
	s.in.Observed.Containers = out
}

func render(s *v1.PodStatus) []string {
	head := string(s.Phase)
	for _, x := range []string{s.Reason, s.Message} {
		if x != "" {
			head += " " + x
		}
	}
	lines := []string{fmt.Sprintf("%s  host=%s pod=%s start=%s", head, s.HostIP, s.PodIP, since(s.StartTime.Time))}
	for _, c := range s.Conditions {
		l := fmt.Sprintf("  %s=%s@%s", c.Type, c.Status, since(c.LastTransitionTime.Time))
		if c.Reason != "" {
			l += " " + c.Reason
		}
		if c.Message != "" {
			l += ": " + c.Message
		}
		lines = append(lines, l)
	}
	for c := range pod.AllStatuses(s) {
		l := fmt.Sprintf("  %s: %s", c.Name, state(&c.State))
		if c.LastTerminationState.Terminated != nil {
			l += " last[" + state(&c.LastTerminationState) + "]"
		}
		l += fmt.Sprintf(" restarts=%d", c.RestartCount)
		if c.Started != nil && *c.Started {
			l += " started"
		}
		if c.Ready {
			l += " ready"
		}
		lines = append(lines, l)
	}
	return lines
}

func state(s *v1.ContainerState) string {
	switch {
	case s.Running != nil:
		return "running since " + since(s.Running.StartedAt.Time)
	case s.Terminated != nil:
		t := fmt.Sprintf("terminated %d %s", s.Terminated.ExitCode, s.Terminated.Reason)
		if s.Terminated.Message != "" {
			t += fmt.Sprintf(" (%.20s)", s.Terminated.Message)
		}
		return t
	case s.Waiting != nil:
		return strings.TrimSpace("waiting " + s.Waiting.Reason + " " + s.Waiting.Message)
	}
	return "nothing"
}

func since(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return t.Sub(epoch).String()
}
