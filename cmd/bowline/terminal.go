package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"

	"github.com/bowline-k8s/bowline/enroll"
	"github.com/bowline-k8s/bowline/hostcheck"
	"github.com/bowline-k8s/bowline/pod"
)

// isTerminal tells whether a person is at the other end.
func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// windowOf a terminal; zeros where it does not say.
func windowOf(stream any) (rows, columns int) {
	if f, ok := stream.(*os.File); ok {
		if columns, rows, err := term.GetSize(int(f.Fd())); err == nil {
			return rows, columns
		}
	}
	return 0, 0
}

// colourful: a terminal, and no wish for none (no-color.org).
func colourful(out io.Writer) bool {
	return isTerminal(out) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
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

// answers come from in, a terminal or not.
func (p *person) answers(in io.Reader) { p.in = bufio.NewReader(in) }

// agrees is nil for a yes; instead says what to do where the answer is another, or where
// standard input is not a terminal.
func (p *person) agrees(ctx context.Context, question, instead string) error {
	yes, err := p.Confirm(ctx, question)
	if err == nil && yes {
		return nil
	}
	if err != nil && !errors.Is(err, enroll.ErrNobody) {
		return err
	}
	return errors.New(instead)
}

// Confirm implements enroll.Asker.
func (p *person) Confirm(ctx context.Context, question string) (bool, error) {
	if p.yes {
		fmt.Fprintf(p.out, "%s yes (--yes)\n", pod.Printable(question))
		return true, nil
	}
	if p.in == nil {
		return false, enroll.ErrNobody
	}
	fmt.Fprintf(p.out, "%s [y/N] ", pod.Printable(question))
	answer := make(chan string, 1)
	go func() { // a read knows no context; the program ends with it
		line, _ := p.in.ReadString('\n') // none is no
		answer <- line
	}()
	select {
	case line := <-answer:
		if !strings.HasSuffix(line, "\n") {
			fmt.Fprintln(p.out)
		}
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
func (p *person) Step(text string) { fmt.Fprintln(p.out, pod.Printable(text)) }

// Show implements enroll.Reporter.
func (p *person) Show(text string) { fmt.Fprint(p.out, pod.PrintableLines(text)) }

// Report implements enroll.Reporter.
func (p *person) Report(r *hostcheck.Report) {
	fmt.Fprintf(p.out, "\n%s\n", r.Text(colourful(p.out)))
}
