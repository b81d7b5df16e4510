package hostadmin

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

// A failed look is shown above the last result, and the screen is restored at the end.
func TestLive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		var out bytes.Buffer
		looks := 0
		look := func(context.Context) (string, error) {
			switch looks++; looks {
			case 2:
				return "", errors.New("connection refused")
			case 4:
				end()
				return "", ctx.Err()
			}
			return strings.Repeat("HOST\n", looks), nil
		}
		testutil.Must(t, Live(ctx, &out, 2*time.Second, func() (int, int) { return 4, 80 }, look))
		got := out.String()
		if !strings.HasPrefix(got, screenOn) || !strings.HasSuffix(got, screenOff) || strings.Count(got, screenTop) != 3 ||
			!strings.Contains(got, "connection refused"+lineEnd+"\n"+lineEnd+"\nHOST") || !strings.Contains(got, "… 2 more lines") {
			t.Errorf("got %q", got)
		}
		failed := func(context.Context) (string, error) { return "", errors.New("no") }
		out.Reset()
		if err := Live(t.Context(), &out, time.Second, nil, failed); err == nil || out.Len() > 0 {
			t.Errorf("a first look that fails: %v, %q", err, out.String())
		}
	})
}
