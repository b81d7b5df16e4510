package plan

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/pod"
)

var update = flag.Bool("update", false, "rewrite testdata with what the planner says")

// TestScripts plays testdata/*.txt. A script is a list of blocks: commands, a line of dashes, and
// their output up to an empty line; # begins a comment.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) < 15 {
		t.Fatalf("%d scripts: %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			want := testutil.ReadFile(t, file)
			got := play(t, string(want), false)
			if bytes.Equal(want, []byte(got)) {
				return
			}
			if *update {
				testutil.Must(t, os.WriteFile(file, []byte(got), 0o644))
				return
			}
			t.Errorf("the planner says otherwise; if that is right: go test ./syncloop/plan -run Scripts -update\n%s", firstDifference(string(want), got))
		})
	}
}

// Rewording the reasons of stops and operations does not change what happens.
func TestScriptsReworded(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) < 15 {
		t.Fatalf("%d scripts: %v", len(files), err)
	}
	for _, file := range files {
		want := testutil.ReadFile(t, file)
		if got := play(t, string(want), true); got != string(want) {
			t.Errorf("%s: %s", file, firstDifference(string(want), got))
		}
	}
}

func firstDifference(want, got string) string {
	a, b := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range a {
		if i >= len(b) || a[i] != b[i] {
			return fmt.Sprintf("line %d:\n want %s\n  got %s", i+1, a[i], strings.Join(b[min(i, len(b)):min(i+1, len(b))], ""))
		}
	}
	return "more lines than wanted"
}

// play runs one script and returns it with the actual outputs.
func play(t *testing.T, script string, reword bool) string {
	var out strings.Builder
	w := &world{reword: reword}
	var block strings.Builder
	skip := false
	lines := strings.Split(strings.TrimRight(script, "\n"), "\n")
	for _, line := range append(lines, "") {
		switch {
		case skip && line != "":
		case line == "----":
			fmt.Fprintf(&out, "----\n%s", block.String())
			block.Reset()
			skip = true
		case line == "":
			if skip || block.Len() > 0 {
				out.WriteString(strings.TrimRight(block.String(), "\n"))
			}
			block.Reset()
			skip = false
			out.WriteString("\n")
		case strings.HasPrefix(line, "#"):
			out.WriteString(line + "\n")
		default:
			out.WriteString(line + "\n")
			said, err := command(w, line)
			if err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			block.WriteString(said)
			for _, s := range w.bad {
				t.Errorf("%q: %s", line, s)
			}
			w.bad = nil
		}
	}
	return strings.TrimRight(out.String(), "\n") + "\n"
}

// command executes one line.
func command(w *world, line string) (string, error) {
	f := strings.Fields(line)
	arg := func(i int) string {
		if i < len(f) {
			return f[i]
		}
		return ""
	}
	rest := strings.TrimSpace(strings.TrimPrefix(line, f[0]))
	con := func() (*pod.Container, error) {
		var found *pod.Container
		for _, c := range w.cons {
			if c.Name == arg(1) || c.ID == arg(1) {
				found = c
			}
		}
		if found == nil {
			return nil, fmt.Errorf("no container %q", arg(1))
		}
		return found, nil
	}
	switch f[0] {
	case "pod":
		p, err := parsePod(rest)
		if err == nil {
			reword := w.reword
			*w = *newWorld(p, Decide)
			w.reword = reword
		}
		return "", err
	case "step": // one decision
		return show(w, w.tick()), nil
	case "run": // decide and execute, one output line per round, until nothing more begins
		var b strings.Builder
		for range 30 {
			was := w.reported
			out := w.tick()
			if len(w.flights) == 0 && w.reported == was {
				b.WriteString(show(w, out))
				return b.String(), nil
			}
			var ops []string
			for _, op := range w.flights {
				ops = append(ops, showOp(op))
			}
			if len(ops) == 0 {
				ops = []string{out.Reason}
			}
			fmt.Fprintf(&b, "%v: %s\n", out.Phase, strings.Join(ops, ", "))
			for len(w.flights) > 0 {
				w.finish(0, endOK, "", "")
			}
		}
		return b.String(), fmt.Errorf("does not come to rest")
	case "done", "fail", "lose", "give-up", "half", "lost-reply", "bad-hook":
		how := map[string]ending{"done": endOK, "fail": endErr, "lose": endBefore, "give-up": endLate, "half": endHalf, "lost-reply": endAfter, "bad-hook": endBadHook}[f[0]]
		n := 0
		for i := len(w.flights) - 1; i >= 0; i-- {
			if op := w.flights[i]; (arg(1) == "" || arg(1) == op.Kind.String()) && (arg(2) == "" || arg(2) == "-" || arg(2) == op.Container) {
				w.finish(i, how, arg(3), strings.Join(f[min(4, len(f)):], " "))
				n++
			}
		}
		if n == 0 {
			return "", fmt.Errorf("no such operation under way")
		}
		return "", nil
	case "late":
		w.catchUp()
		return "", nil
	case "exit":
		c, err := con()
		if err != nil {
			return "", err
		}
		code, err := strconv.Atoi(arg(2))
		w.exit(c, int32(code))
		return "", err
	case "unknown":
		c, err := con()
		if err == nil {
			c.State = pod.StateUnknown
		}
		return "", err
	case "collect": // garbage collection removes a dead container
		c, err := con()
		if err == nil {
			w.carryOut(Operation{Kind: OpRemoveContainer, ID: c.ID})
		}
		return "", err
	case "probe":
		c, err := con()
		if err != nil {
			return "", err
		}
		v := pod.Verdicts{}
		for _, s := range f[2:] {
			name, verdict, _ := strings.Cut(s, "=")
			r := map[string]pod.Verdict{"success": pod.VerdictSuccess, "failure": pod.VerdictFailure}[verdict]
			if name == "startup" {
				v.Startup = r
			} else {
				v.Liveness = r
			}
		}
		w.verdicts[c.ID] = v
		return "", nil
	case "sandbox-dies":
		w.boxes[0].Ready = false
		return "", nil
	case "loses-address":
		w.boxes[0].NoAddress = true
		return "", nil
	case "image":
		w.hashes[arg(1)] = arg(2)
		w.pod = w.pod.DeepCopy()
		pod.Find(pod.AllContainers(&w.pod.Spec), arg(1)).Image = arg(2)
		return "", nil
	case "resize": // CONTAINER CPU MEMORY
		cpu, err := strconv.ParseInt(arg(2), 10, 64)
		if err != nil {
			return "", err
		}
		memory, err := strconv.ParseInt(arg(3), 10, 64)
		w.resizeTo(arg(1), cpu, memory)
		return "", err
	case "delete", "evict":
		d, err := time.ParseDuration(arg(1))
		if f[0] == "delete" {
			w.remove(d)
		} else {
			w.terminate = Merge(w.terminate, &Terminate{At: w.now, Grace: d, Cause: CauseEvicted, Reason: "Evicted"})
		}
		return "", err
	case "advance":
		d, err := time.ParseDuration(arg(1))
		w.now = w.now.Add(d)
		return "", err
	case "stale":
		w.stale = rest
		return "", nil
	case "hold":
		w.hold = rest
		return "", nil
	case "crash": // our process dies; crash done: the operations in flight were carried out
		w.crash(func(Operation) ending {
			return map[string]ending{"": endBefore, "done": endAfter, "half": endHalf}[arg(1)]
		})
		return "", nil
	case "world":
		return showWorld(w), nil
	}
	return "", fmt.Errorf("no such command")
}

func show(w *world, out Plan) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v: %s\n", out.Phase, out.Reason)
	for _, k := range out.Cancel {
		fmt.Fprintf(&b, "  cancel %v %s\n", k.Kind, k.Container)
	}
	for _, op := range out.Start {
		fmt.Fprintf(&b, "  %s\n", showOp(op))
	}
	if !out.WakeAt.IsZero() {
		fmt.Fprintf(&b, "  wake in %v\n", out.WakeAt.Sub(w.now))
	}
	return b.String()
}

func showOp(op Operation) string {
	var b strings.Builder
	b.WriteString(op.Kind.String())
	for _, s := range []string{op.Container, op.ID} {
		if s != "" {
			b.WriteString(" " + s)
		}
	}
	switch op.Kind {
	case OpSandbox, OpStart:
		fmt.Fprintf(&b, " attempt=%d", op.Attempt)
	case OpStop:
		fmt.Fprintf(&b, " grace=%v", op.Grace)
		if op.PreStop {
			b.WriteString(" prestop")
		}
	}
	return b.String()
}

func showWorld(w *world) string {
	var b strings.Builder
	for _, s := range w.boxes {
		fmt.Fprintf(&b, "  %s attempt=%d ready=%v\n", s.ID, s.Attempt, s.Ready)
	}
	for _, c := range w.cons {
		fmt.Fprintf(&b, "  %s attempt=%d %v", c.ID, c.Attempt, c.State)
		if c.State == pod.StateExited {
			fmt.Fprintf(&b, " %d", c.ExitCode)
		}
		fmt.Fprintf(&b, " in %s\n", c.SandboxID)
	}
	keys := []string{}
	for k := range w.ledger.Backoffs() {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		e := w.ledger.Backoff(k)
		fmt.Fprintf(&b, "  %s: %s %s\n", k, e.Reason, e.Message)
	}
	return b.String()
}

// parsePod reads a pod from words: inits=a,s* (a star makes a sidecar) main=x,y
// debug=d restart=Never grace=30 deadline=60 prestop=x poststart=x startup=x:5
// liveness=x:5 (grace) policy=x:Never rules=x:42:Restart resize-restarts=x.
func parsePod(words string) (*v1.Pod, error) {
	p := &v1.Pod{}
	p.Namespace, p.Name, p.UID = "ns", "web", "u1"
	p.Spec.RestartPolicy = v1.RestartPolicyAlways
	always := v1.ContainerRestartPolicyAlways
	for _, word := range strings.Fields(words) {
		key, value, _ := strings.Cut(word, "=")
		for _, item := range strings.Split(value, ",") {
			part := strings.Split(item, ":")
			c := pod.Find(pod.AllContainers(&p.Spec), part[0])
			var number *int64
			if n, err := strconv.ParseInt(part[len(part)-1], 10, 64); err == nil {
				number = &n
			}
			if c == nil && !slices.Contains([]string{"inits", "main", "debug", "restart", "grace", "deadline"}, key) {
				return nil, fmt.Errorf("%s: no container %q yet", word, part[0])
			}
			switch key {
			case "inits":
				c := v1.Container{Name: strings.TrimSuffix(item, "*")}
				if strings.HasSuffix(item, "*") {
					c.RestartPolicy = &always
				}
				p.Spec.InitContainers = append(p.Spec.InitContainers, c)
			case "main":
				p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: item})
			case "debug":
				p.Spec.EphemeralContainers = append(p.Spec.EphemeralContainers,
					v1.EphemeralContainer{EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: item}})
			case "restart":
				p.Spec.RestartPolicy = v1.RestartPolicy(item)
			case "grace":
				p.Spec.TerminationGracePeriodSeconds = number
			case "deadline":
				p.Spec.ActiveDeadlineSeconds = number
			case "prestop", "poststart":
				if c.Lifecycle == nil {
					c.Lifecycle = &v1.Lifecycle{}
				}
				if key == "prestop" {
					c.Lifecycle.PreStop = &v1.LifecycleHandler{}
				} else {
					c.Lifecycle.PostStart = &v1.LifecycleHandler{}
				}
			case "startup":
				c.StartupProbe = &v1.Probe{TerminationGracePeriodSeconds: number}
			case "liveness":
				c.LivenessProbe = &v1.Probe{TerminationGracePeriodSeconds: number}
			case "resize-restarts": // for memory
				c.ResizePolicy = []v1.ContainerResizePolicy{{ResourceName: v1.ResourceMemory, RestartPolicy: v1.RestartContainer}}
			case "never-pull":
				c.ImagePullPolicy = v1.PullNever
			case "policy":
				policy := v1.ContainerRestartPolicy(part[1])
				c.RestartPolicy = &policy
			case "rules":
				never := v1.ContainerRestartPolicyNever
				if c.RestartPolicy == nil {
					c.RestartPolicy = &never
				}
				code, err := strconv.Atoi(part[1])
				if err != nil {
					return nil, err
				}
				c.RestartPolicyRules = append(c.RestartPolicyRules, v1.ContainerRestartRule{
					Action:    v1.ContainerRestartRuleAction(part[2]),
					ExitCodes: &v1.ContainerRestartRuleOnExitCodes{Operator: v1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{int32(code)}},
				})
			default:
				return nil, fmt.Errorf("%s: no such word", word)
			}
		}
	}
	return p, nil
}
