package bowline

import (
	"go/ast"
	"go/constant"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

// TestLogMessages: people and alerts search the log for a message. So it is the same text each time,
// in the form of Kubernetes' own messages, and what differs is in keys and values.
func TestLogMessages(t *testing.T) {
	calls, used := 0, set{}
	for _, p := range typedModule() {
		for _, c := range p.logged() {
			calls++
			if why := c.fault(); why != "" {
				t.Errorf("%s: the log message %s", at(c.at), why)
			}
			if c.text != nil {
				used[constant.StringVal(c.text)] = true
			}
		}
	}
	if calls < 100 {
		t.Errorf("looked at %d log messages: there are more", calls)
	}
	for text := range quiet {
		if !used[text] {
			t.Errorf("no call logs %q, which may be quiet", text)
		}
	}
}

// TestLogMessagesFail shows that each rule of TestLogMessages fails when it is broken.
func TestLogMessagesFail(t *testing.T) {
	for line, want := range map[string]string{
		`log.Info("Removed the image", "image", name)`:                "",
		`log.V(2).Info("Removed " + "the image")`:                     "",
		`log.Error(nil, "Failed to remove the image", "image", name)`: "",
		`log.Info("Removed " + name)`:                                 "is not constant",
		`log.V(1).Info(fmt.Sprintf("Removed %s", name))`:              "is not constant",
		`log.Error(nil, name)`:                                        "is not constant",
		`klog.Background().Info("removed the image")`:                 "does not begin with a capital letter",
		`log.Info("")`: "does not begin with a capital letter",
		`log.Error(nil, "Failed to remove the image.")`:       "ends with a period",
		`log.Info("Removed ` + strings.Repeat("x", 73) + `")`: "has more than 80 characters",
		`log.Info("Removed ` + strings.Repeat("é", 72) + `")`: "",
		`log.Info("Removed the image %q")`:                    "has a verb of fmt",
		`log.Info("The image is removed")`:                    "begins with The, which is no verb on the list",
		`log.Info("Image removed")`:                           "begins with Image, which is no verb on the list",
		`log.Info("Failed to remove the image")`:              "reports a failure, and is no Error",
		`log.V(1).Info("Failed to remove the image")`:         "reports a failure, and is no Error",
		`log.V(1).Info("Failed to check all shims")`:          "",
		`log.Info("Failed to check all shims")`:               "reports a failure, and is no Error",
		`log.Error(nil, "Failed")`:                            "does not say what failed",
		`log.Error(nil, "Failed, will retry")`:                "does not say what failed",
		`klog.Infof("Removed %s", name)`:                      "goes to klog itself: use a klog.Logger",
		`klog.ErrorS(nil, "Failed to remove the image")`:      "goes to klog itself: use a klog.Logger",
	} {
		p := typedText("package p\nimport (\n\"fmt\"\n\"k8s.io/klog/v2\"\n)\nvar _ = fmt.Sprint\nfunc f(log klog.Logger, name string) {\n" + line + "\n}\n")
		calls := p.logged()
		if len(calls) != 1 {
			t.Errorf("%s: %d calls", line, len(calls))
			continue
		}
		if got := calls[0].fault(); got != want {
			t.Errorf("%s: the log message %s; want %q", line, got, want)
		}
	}
}

// TestLogPods: the key "pod" has a pod's namespace and name, in the one form that both formats of the log
// show, so that one search finds every line about it.
func TestLogPods(t *testing.T) {
	found := 0
	for _, p := range typedModule() {
		pods, faults := p.loggedPods()
		found += pods
		for _, n := range faults {
			t.Errorf("%s: the value of the key pod is no klog.KObj or klog.KRef", at(n))
		}
	}
	if found < 10 {
		t.Errorf("looked at %d lines about pods: there are more", found)
	}
}

// TestLogPodsFail shows that TestLogPods fails for each other form.
func TestLogPodsFail(t *testing.T) {
	for line, want := range map[string]int{
		`log.Info("Removed it", "pod", klog.KRef("ns", name))`:                              0,
		`log.V(2).Info("Removed it", "image", name, "pod", name)`:                           1,
		`log.Error(nil, "Failed to remove it", "pod", name)`:                                1,
		`log.WithValues("uid", name, "pod", name).Info("Removed it")`:                       1,
		`log.WithValues("pod", klog.KRef("ns", name)).Info("Removed it", "name", "pod")`:    0,
		`log.WithValues("pod", klog.KRef("ns", name)).Error(nil, "Failed to", "pod", name)`: 1,
	} {
		p := typedText("package p\nimport \"k8s.io/klog/v2\"\nfunc f(log klog.Logger, name string) {\n" + line + "\n}\n")
		if _, faults := p.loggedPods(); len(faults) != want {
			t.Errorf("%s: %d faults, want %d", line, len(faults), want)
		}
	}
}

// loggedPods returns how many lines have the key pod, and the values that have another form.
func (p typed) loggedPods() (found int, faults []ast.Node) {
	for _, file := range p.files {
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			f := p.function(call.Fun)
			if f == nil {
				return true
			}
			first, is := map[string]int{
				"(github.com/go-logr/logr.Logger).Info": 1, "(github.com/go-logr/logr.Logger).Error": 2, "(github.com/go-logr/logr.Logger).WithValues": 0,
			}[f.FullName()]
			for i := first; is && i+1 < len(call.Args); i += 2 {
				if key := p.Types[call.Args[i]].Value; key == nil || key.Kind() != constant.String || constant.StringVal(key) != "pod" {
					continue
				}
				found++
				if p.TypeOf(call.Args[i+1]).String() != "k8s.io/klog/v2.ObjectRef" {
					faults = append(faults, call.Args[i+1])
				}
			}
			return true
		})
	}
	return found, faults
}

// logCall is a call that logs. text is its message, or nil if it is not constant.
type logCall struct {
	at    ast.Node
	text  constant.Value
	plain bool // a function of klog itself, without a logger
	info  bool // not an error
	v     bool // of a higher verbosity
}

var (
	logs = regexp.MustCompile(`^(Info|Warning|Error|Fatal|Exit)`)
	// verbs begin a message: what was done, or what is being done now.
	verbs = strings.Fields(`Accepting Acquired Applied Beginning Called Changed Collected Connected Creating Deleting Detached
		Detected Disabled Dropped Evicted Evicting Failed Finished Found Handed Handing Holding Ignored Keeping Leaving Logging
		Lost Missed Observed Opened Quarantined Reacquired Read Received Reclaiming Recorded Recovered Refused Registered
		Registering Rejected Rejecting Releasing Removed Removing Renewed Reported Rescheduled Retrying Rotated Set Shutting
		Skipped Started Starting Stopped Stopping Timed Using Waiting Wrote`)
	verb = regexp.MustCompile(`%[-+# 0]*[0-9.*]*[a-zA-Z]`)
)

// fault says which rule the message breaks, or "".
func (c logCall) fault() string {
	if c.plain {
		return "goes to klog itself: use a klog.Logger"
	}
	if c.text == nil {
		return "is not constant"
	}
	text := constant.StringVal(c.text)
	switch first, _ := utf8.DecodeRuneInString(text); {
	case !unicode.IsUpper(first):
		return "does not begin with a capital letter"
	case strings.HasSuffix(text, "."):
		return "ends with a period"
	case utf8.RuneCountInString(text) > 80:
		return "has more than 80 characters"
	case verb.MatchString(text):
		return "has a verb of fmt"
	}
	word, rest, _ := strings.Cut(text, " ")
	switch word = strings.TrimRight(word, ":,;"); {
	case word == "Failed" && !strings.HasPrefix(rest, "to "):
		return "does not say what failed"
	case word == "Failed" && c.info && (!c.v || quiet[text] == ""):
		return "reports a failure, and is no Error"
	case !slices.Contains(verbs, word):
		return "begins with " + word + ", which is no verb on the list"
	}
	return ""
}

// quiet are the failures that are no errors of the log, each with the reason: something else reports
// them, or the next attempt makes them good. They are logged at V(1) or above. All others are Errors.
var quiet = map[string]string{
	"Failed to answer a node log query":                                      "the client gets the error in the answer",
	"Failed to check all shims":                                              "is repeated, and a runtime that does not answer makes the node not Ready",
	"Failed to close the shutdown watch":                                     "the watch has ended, and why is logged",
	"Failed to grow the pod's cgroup, will retry":                            "the resize continues, and logs its own failure",
	"Failed to list the runtime's images":                                    "a runtime that does not answer makes the node not Ready",
	"Failed to look up the result of an image pull":                          "the next garbage collection of images repeats it",
	"Failed to open the SSH connection":                                      "package readiness logs that the link is lost, with this error",
	"Failed to re-read the node's labels":                                    "the labels that are known count",
	"Failed to read static pods":                                             "the host cannot be reached, which the condition LinkUp shows; other failures are Errors",
	"Failed to read the host's boot ID":                                      "an unknown boot ID is a case of its own",
	"Failed to read the host's resolv.conf; the pod gets the last known one": "the pod starts with it",
	"Failed to read the node's pods after an outage, will retry":             "an API server that does not answer is an Error of the lease",
	"Failed to release the claim of two connections":                         "the connection that holds it has ended, and its locks with it",
	"Failed to release the lost lock":                                        "the host releases it by itself, and the loss is an Error",
	"Failed to remove the records of removed images, will retry":             "the next garbage collection of images repeats it",
	"Failed to verify the cluster of the API server, will retry":             "an API server that does not answer is an Error of the lease",
}

// logged returns the calls of the package that log.
func (p typed) logged() (calls []logCall) {
	for _, file := range p.files {
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			f := p.function(call.Fun)
			if f == nil || f.Pkg() == nil {
				return true
			}
			switch name := f.FullName(); {
			case name == "(github.com/go-logr/logr.Logger).Info":
				calls = append(calls, logCall{at: call, text: p.Types[call.Args[0]].Value, info: true, v: p.verbose(call)})
			case name == "(github.com/go-logr/logr.Logger).Error":
				calls = append(calls, logCall{at: call, text: p.Types[call.Args[1]].Value})
			case f.Pkg().Path() == "k8s.io/klog/v2" && f.Signature().Recv() == nil && logs.MatchString(f.Name()):
				calls = append(calls, logCall{at: call, plain: true})
			}
			return true
		})
	}
	return calls
}

// verbose reports whether a call of Info is one of V(n).
func (p typed) verbose(call *ast.CallExpr) bool {
	s, ok := ast.Unparen(call.Fun).(*ast.SelectorExpr)
	if !ok {
		return false
	}
	of, ok := ast.Unparen(s.X).(*ast.CallExpr)
	if !ok {
		return false
	}
	f := p.function(of.Fun)
	return f != nil && f.Name() == "V"
}
