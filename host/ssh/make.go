package ssh

import (
	"context"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/internal/machine"
	"github.com/bowline-k8s/bowline/host/ssh/shell"
)

// Make is one script with few processes: on the host, starting a process costs more than its
// work.
func (h *Host) Make(ctx context.Context, entries ...host.Entry) ([]bool, error) {
	return call(h, ctx, "Make", shortDeadline, func(ctx context.Context) ([]bool, error) {
		if len(entries) == 0 {
			return nil, nil
		}
		for _, t := range entries {
			if err := machine.Absolute("make", t.Path); err != nil {
				return nil, err
			}
		}
		res, err := h.script(ctx, "make", entries[0].Path, scriptMake, nil, []byte(makeText(entries)))
		if err != nil {
			return nil, err
		}
		made := make([]bool, len(entries))
		for line := range strings.Lines(string(res.Stdout)) {
			i, err := strconv.Atoi(strings.TrimSuffix(line, "\n"))
			if err != nil || i < 0 || i >= len(made) {
				return nil, fmt.Errorf("make %s: the host answered %.100q", entries[0].Path, line)
			}
			made[i] = true
		}
		return made, nil
	})
}

// makeText is the input of scripts/make.sh: calls of its functions. One call creates consecutive
// directories with the same mode.
func makeText(entries []host.Entry) string {
	var b strings.Builder
	open := fs.FileMode(0)
	for i, t := range entries {
		p := path.Clean(t.Path)
		if !t.Mode.IsDir() {
			if open != 0 {
				b.WriteString("\n")
				open = 0
			}
			call := "empty"
			if len(t.Data) > 0 || t.Synced || t.InPlace {
				switch call = "full"; {
				case t.Synced:
					call = "synced"
				case t.InPlace:
					call = "inplace"
				}
				b.WriteString("content() {\n:\n")
				printText(&b, t.Data)
				b.WriteString("}\n")
			}
			special, fields := "", 5
			if call == "inplace" {
				fields = 6
			}
			if m := octal(t.Mode); strings.ContainsAny(m, "1357") || m[0] != '0' {
				special = m
			}
			b.WriteString(call + " " + strconv.Itoa(i) + words([]string{octal(0o777 &^ t.Mode.Perm()), special, p, path.Dir(p), temporary(p), octal(t.Mode)}[:fields]) + "\n")
			continue
		}
		if open != t.Mode {
			if open != 0 {
				b.WriteString("\n")
			}
			open = t.Mode
			mode := t.Mode &^ fs.ModeDir
			b.WriteString("dirs" + words([]string{octal(0o777 &^ (mode & 0o755)), octal(mode)}))
		}
		b.WriteString(" " + shell.Quote(strconv.Itoa(i)+":"+p))
	}
	if open != 0 {
		b.WriteString("\n")
	}
	b.WriteString(endMark)
	return b.String()
}
