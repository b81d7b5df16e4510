package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

// TestAnotherCallInItsPlace: a sample may choose a call that happens not to occur in three lives.
// Then another call of the same label is struck at the same point.
func TestAnotherCallInItsPlace(t *testing.T) {
	var cases []testCase
	for _, site := range []string{"list", "prefetch"} {
		for _, p := range points {
			f := fault{call: call{label: "cri/ContainerStatus", site: site, nth: 1}, point: p[0], action: p[1]}
			cases = append(cases, testCase{name: f.String(), fault: f})
		}
	}
	for _, strikes := range []bool{true, false} {
		a := &arena{quick: true, brief: true, part: true, struck: map[string]map[string]bool{}, rand: rand.New(rand.NewPCG(1, 0)), only: regexp.MustCompile("")}
		sampled := a.sample(cases)
		if len(sampled) != 1 || len(sampled[0].others) != 1 {
			t.Fatalf("sampled %v, want one case with one other", sampled)
		}
		first, log := sampled[0].fault, filepath.Join(t.TempDir(), "calls")
		var lives []string
		a.spread(t, [][]*node{{{calls: callLog{log}}}}, sampled, func(_ context.Context, _ []*node, i int, c testCase) []string {
			lives = append(lives, fmt.Sprint(i, " ", c.fault.site == first.site, " ", c.fault.strikesAt() == first.strikesAt()))
			if c.fault.site == first.site || !strikes {
				return []string{"the fault " + notStruck}
			}
			testutil.Must(t, os.WriteFile(log, []byte("strike "+c.fault.label+" "+c.fault.site+"\n"), 0o644))
			return nil
		})
		want := "[0 true true 1 true true 2 true true 3 false true]"
		if got := fmt.Sprint(lives); got != want {
			t.Errorf("lives %s, want %s", got, want)
		}
		if struck := a.struck[first.label][first.strikesAt()]; struck != strikes || (len(a.unstruck) == 0) != strikes {
			t.Errorf("struck: %v, did not strike: %v; want struck: %v", struck, a.unstruck, strikes)
		}
	}
}
