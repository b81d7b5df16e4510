package bowline

import (
	"go/ast"
	"go/constant"
	"regexp"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

// TestLogMessages: people and alerts search the log for a message. So it is the same text each time,
// in the form of Kubernetes' own messages, and what differs is in keys and values.
func TestLogMessages(t *testing.T) {
	calls := 0
	for _, p := range typedModule() {
		for _, c := range p.logged() {
			calls++
			if why := c.fault(); why != "" {
				t.Errorf("%s: the log message %s", at(c.at), why)
			}
		}
	}
	if calls < 100 {
		t.Errorf("looked at %d log messages: there are more", calls)
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

// logCall is a call that logs. text is its message, or nil if it is not constant.
type logCall struct {
	at    ast.Node
	text  constant.Value
	plain bool // a function of klog itself, without a logger
}

var (
	logs = regexp.MustCompile(`^(Info|Warning|Error|Fatal|Exit)`)
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
	return ""
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
				calls = append(calls, logCall{at: call, text: p.Types[call.Args[0]].Value})
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
