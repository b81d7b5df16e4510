package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/bowline-k8s/bowline/enroll"
	"github.com/bowline-k8s/bowline/hostcheck"
)

// isTerminal tells whether a person is at the other end.
func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// windowOf a terminal; zeros where it does not say.
func windowOf(stream any) (rows, columns int) {
	if f, ok := stream.(*os.File); ok {
		if w, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil {
			return int(w.Row), int(w.Col)
		}
	}
	return 0, 0
}

// person asks and tells at a terminal, or tells a file.
type person struct {
	in  *bufio.Reader // nil: nobody is there
	out io.Writer
	yes bool // every question has been answered
}

func newPerson(in io.Reader, out io.Writer, yes bool) *person {
	p := &person{out: out, yes: yes}
	if isTerminal(in) {
		p.answers(in)
	}
	return p
}

// answers come from in.
func (p *person) answers(in io.Reader) { p.in = bufio.NewReader(in) }

// Confirm implements enroll.Asker.
func (p *person) Confirm(ctx context.Context, question string) (bool, error) {
	if p.yes {
		fmt.Fprintf(p.out, "%s yes (--yes)\n", question)
		return true, nil
	}
	if p.in == nil {
		return false, enroll.ErrNobody
	}
	fmt.Fprintf(p.out, "%s [y/N] ", question)
	answer := make(chan string, 1)
	go func() { // a read knows no context; the program ends with it
		line, _ := p.in.ReadString('\n') // none is no
		answer <- line
	}()
	select {
	case line := <-answer:
		switch strings.ToLower(strings.TrimSpace(line)) {
		case "y", "yes":
			return true, nil
		}
		return false, nil
	case <-ctx.Done():
		fmt.Fprintln(p.out)
		return false, context.Cause(ctx)
	}
}

// Step implements enroll.Reporter.
func (p *person) Step(text string) { fmt.Fprintln(p.out, text) }

// Show implements enroll.Reporter.
func (p *person) Show(text string) { fmt.Fprint(p.out, text) }

// Report implements enroll.Reporter.
func (p *person) Report(r *hostcheck.Report) {
	fmt.Fprintf(p.out, "\n%s\n", r.Text(colourful(p.out)))
}
