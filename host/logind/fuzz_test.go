package logind

import (
	"io"
	"strings"
	"testing"

	"github.com/bowline-k8s/bowline/notify"
	"github.com/bowline-k8s/bowline/test/corpus"
)

// printed is a process that has printed a text and ended.
type printed struct{ io.Reader }

func (printed) Write(p []byte) (int, error) { return len(p), nil }
func (printed) Close() error                { return nil }

// FuzzListen reads any output of the program that watches for shutdowns.
func FuzzListen(f *testing.F) {
	f.Add("n held\n  signal PrepareForShutdown true\nn released\n", false)
	f.Add("n refused\nn ended\n", true)
	f.Add("Monitoring\n\n"+strings.Repeat("x", 70<<10), true)
	corpus.Add(f)
	f.Fuzz(func(t *testing.T, text string, asked bool) {
		s := &Session{process: printed{strings.NewReader(text)}, nonce: "n", asked: asked,
			words: make(chan string, 1), hints: notify.New(), ended: make(chan struct{})}
		s.listen(nil)
		if s.err == nil {
			t.Errorf("%q ends without a reason", text)
		}
		select {
		case word := <-s.words:
			if !asked || !strings.Contains(text, "n "+word) {
				t.Errorf("%q answers %q", text, word)
			}
		default:
		}
	})
}
