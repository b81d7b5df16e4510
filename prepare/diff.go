package prepare

import (
	"fmt"
	"strings"
)

// Text describes a fix before it is applied.
func (m Fix) Text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s\n", m.Name, m.Why)
	if m.Warning != "" {
		fmt.Fprintf(&b, "  (%s)\n", m.Warning)
	}
	if m.Module != "" {
		fmt.Fprintf(&b, "  load the kernel's module %s\n", m.Module)
	}
	for _, e := range m.Edits {
		if e.Old == nil {
			fmt.Fprintf(&b, "  new file %s\n", e.Path)
		} else {
			fmt.Fprintf(&b, "  change %s\n", e.Path)
		}
		for _, line := range diff(e.Old, e.New) {
			fmt.Fprintf(&b, "    %s\n", line)
		}
	}
	for _, s := range m.Kernel {
		old := s.Old
		if old == "" {
			old = "not there"
		}
		fmt.Fprintf(&b, "  set %s=%s now (it is %s)\n", s.Name, s.New, old)
	}
	if m.Restart {
		fmt.Fprintf(&b, "  %s\n", strings.Join(restartContainerd, " "))
	}
	return b.String()
}

// around is the number of context lines around a change.
const around = 2

// diff is a line diff of old and text: "-" goes, "+" comes, " " stays.
func diff(old *string, text string) []string {
	var a []string
	if old != nil {
		a = split(*old)
	}
	b := split(text)
	// Find the common head and tail; an edit changes one place of a file.
	head := 0
	for head < len(a) && head < len(b) && a[head] == b[head] {
		head++
	}
	tail := 0
	for tail < len(a)-head && tail < len(b)-head && a[len(a)-1-tail] == b[len(b)-1-tail] {
		tail++
	}
	if head == len(a) && head == len(b) {
		return nil
	}
	var out []string
	add := func(mark string, lines []string) {
		for _, line := range lines {
			out = append(out, mark+line)
		}
	}
	add("  ", a[max(0, head-around):head])
	add("- ", a[head:len(a)-tail])
	add("+ ", b[head:len(b)-tail])
	add("  ", a[len(a)-tail:min(len(a), len(a)-tail+around)])
	return out
}

func split(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(strings.TrimSuffix(text, "\n"), "\n")
}
