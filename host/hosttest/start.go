package hosttest

import (
	"bufio"
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

func testStart(t *testing.T, m *machine) {
	ctx := context.Background()
	if _, err := m.h.Start(ctx); err == nil {
		t.Error("no program was started")
	}
	t.Run("talks until its input ends", func(t *testing.T) {
		d := m.dir(t)
		odd := `it's "odd" $HOME * \`
		p, err := m.h.Start(ctx, "sh", "-c", `echo "$1"; while read -r l; do echo "got $l" >&2; done; echo over >"$2"`, "sh", odd, d+"/end")
		testutil.Must(t, err)
		out := bufio.NewReader(p)
		line := func(want string) {
			t.Helper()
			if got, err := out.ReadString('\n'); err != nil || got != want+"\n" {
				t.Fatalf("it says %q, %v; want %q", got, err, want)
			}
		}
		line(odd)
		for _, say := range []string{"one", "two words", strings.Repeat("x", 3000)} {
			_, err := p.Write([]byte(say + "\n"))
			testutil.Must(t, err)
			line("got " + say)
		}
		testutil.Must(t, p.Close())
		testutil.Must(t, p.Close())
		testutil.Eventually(t, "the program ends with its input", func() bool { return m.exists(t, d+"/end") })
	})
	t.Run("ends by itself", func(t *testing.T) {
		p, err := m.h.Start(ctx, "sh", "-c", "echo last words; exit 3")
		testutil.Must(t, err)
		defer p.Close()
		if all, err := io.ReadAll(p); err != nil || string(all) != "last words\n" {
			t.Errorf("it said %q, %v", all, err)
		}
	})
	t.Run("is not there", func(t *testing.T) {
		p, err := m.h.Start(ctx, "/no/such/program")
		if err != nil {
			return
		}
		defer p.Close()
		if all, err := io.ReadAll(p); err != nil || !strings.Contains(string(all), "/no/such/program") {
			t.Errorf("it said %q, %v", all, err)
		}
	})
	t.Run("ends with the host's sessions", func(t *testing.T) {
		d := m.dir(t)
		p, err := m.h.Start(ctx, "sh", "-c", `echo here; read -r l; echo over >"$1"`, "sh", d+"/end")
		testutil.Must(t, err)
		if _, err := bufio.NewReader(p).ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		testutil.Must(t, p.Close())
		testutil.Eventually(t, "the program ends", func() bool { return m.exists(t, d+"/end") })
		if n, err := p.Read(make([]byte, 1)); n != 0 || err == nil || errors.Is(err, context.Canceled) {
			t.Errorf("read of a closed one: %d, %v", n, err)
		}
	})
}
