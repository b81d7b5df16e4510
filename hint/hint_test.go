package hint

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
)

type typed struct{}

func (typed) Error() string { return "typed" }
func (typed) Hint() string  { return "set:\na 1\nthen run b" }

func TestHints(t *testing.T) {
	inner := Add(fmt.Errorf("open %s: %w", "/s", io.EOF), "start %s", "the runtime")
	for name, c := range map[string]struct {
		err             error
		says, of, whole string
	}{
		"none":       {io.EOF, "EOF", "", "EOF"},
		"one":        {inner, "open /s: EOF", "start the runtime", "open /s: EOF. Start the runtime"},
		"wrapped":    {fmt.Errorf("box: %w", inner), "box: open /s: EOF", "start the runtime", "box: open /s: EOF. Start the runtime"},
		"full stop":  {Add(errors.New("No."), "%s", "É is a letter"), "No.", "É is a letter", "No. É is a letter"},
		"outer":      {Add(inner, "run it again"), "open /s: EOF", "run it again\nstart the runtime", "open /s: EOF. Run it again. Start the runtime"},
		"join":       {errors.Join(inner, typed{}, inner), "open /s: EOF\ntyped\nopen /s: EOF", "start the runtime\nset:\na 1\nthen run b", "open /s: EOF\ntyped\nopen /s: EOF. Start the runtime. Set: a 1; then run b"},
		"both of %w": {fmt.Errorf("%w: %w", io.EOF, typed{}), "EOF: typed", "set:\na 1\nthen run b", "EOF: typed. Set: a 1; then run b"},
		"empty":      {Add(io.EOF, ""), "EOF", "", "EOF"},
	} {
		if c.err.Error() != c.says || Of(c.err) != c.of || Text(c.err) != c.whole {
			t.Errorf("%s: %q, %q, %q", name, c.err, Of(c.err), Text(c.err))
		}
	}
	if Add(nil, "start it") != nil || Of(nil) != "" {
		t.Error("no error has a hint")
	}
	if !errors.Is(inner, io.EOF) {
		t.Error("a hint hides the error")
	}
}

func TestWith(t *testing.T) {
	given := append(make([]any, 0, 8), "host", "h1")
	if got := With(io.EOF, given...); !slices.Equal(got, given) {
		t.Errorf("without a hint: %v", got)
	}
	with := With(Add(io.EOF, "start it"), given...)
	_ = append(given, "other", 1) // shares no memory with it
	if !slices.Equal(with, []any{"host", "h1", "hint", "start it"}) {
		t.Errorf("with a hint: %v", with)
	}
}
