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

	"github.com/bowline-k8s/bowline/hostadmin"
	"github.com/bowline-k8s/bowline/hostcheck"
	"github.com/bowline-k8s/bowline/pod"
)

// isTerminal reports whether stream is a terminal.
func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// windowOf returns the size of a terminal; zeros if unknown.
func windowOf(stream any) (rows, columns int) {
	if f, ok := stream.(*os.File); ok {
		if columns, rows, err := term.GetSize(int(f.Fd())); err == nil {
			return rows, columns
		}
	}
	return 0, 0
}

// colourful reports whether to print colours: out is a terminal, and they are not disabled
// (no-color.org).
func colourful(out io.Writer) bool {
	return isTerminal(out) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}

// person is the user at a terminal, or one who only reads the output.
type person struct {
	in  *bufio.Reader // nil if no one can answer
	out io.Writer
	yes bool // answers every question with yes
}

func newPerson(in io.Reader, out io.Writer, yes bool) *person {
	p := &person{out: out, yes: yes}
	if isTerminal(in) {
		p.answers(in)
	}
	return p
}

// answers makes p read answers from in, a terminal or not.
func (p *person) answers(in io.Reader) { p.in = bufio.NewReader(in) }

// agrees returns nil for a yes. For any other answer, or without anyone to answer, it returns the
// error instead, which says what to do.
func (p *person) agrees(ctx context.Context, question, instead string) error {
	yes, err := p.Confirm(ctx, question)
	if err == nil && yes {
		return nil
	}
	if err != nil && !errors.Is(err, hostadmin.ErrCannotAsk) {
		return err
	}
	return errors.New(instead)
}

// Confirm implements hostadmin.Asker.
func (p *person) Confirm(ctx context.Context, question string) (bool, error) {
	if p.yes {
		fmt.Fprintf(p.out, "%s yes (--yes)\n", pod.Printable(question))
		return true, nil
	}
	if p.in == nil {
		return false, hostadmin.ErrCannotAsk
	}
	fmt.Fprintf(p.out, "%s [y/N] ", pod.Printable(question))
	answer := make(chan string, 1)
	go func() { // a read cannot be cancelled; it ends with the program
		line, _ := p.in.ReadString('\n') // end of input means no
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

// Step implements hostadmin.Reporter.
func (p *person) Step(text string) { fmt.Fprintln(p.out, pod.Printable(text)) }

// Show implements hostadmin.Reporter.
func (p *person) Show(text string) { fmt.Fprint(p.out, pod.PrintableLines(text)) }

// Report implements hostadmin.Reporter.
func (p *person) Report(r *hostcheck.Report) {
	fmt.Fprintf(p.out, "\n%s\n", r.Text(colourful(p.out)))
}
