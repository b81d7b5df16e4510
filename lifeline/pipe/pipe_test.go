package pipe

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/bowline-k8s/bowline/lifeline/pipe/pipetest"
)

var seed = flag.Uint64("seed", 0, "of the random cases; 0: another one in each run")

// cases is how many random cases run: few, or BOWLINE_PIPE_CASES.
func cases(t *testing.T, few int) int {
	if n, err := strconv.Atoi(os.Getenv("BOWLINE_PIPE_CASES")); err == nil {
		return n
	}
	if testing.Short() {
		return few / 4
	}
	return few
}

// TestCutAtEachByte cuts, or makes swallow, the first transport of a short exchange at each byte of each
// direction, and in some cases the second one as well.
func TestCutAtEachByte(t *testing.T) {
	sizes := [2]int{40, 30}
	var carried [2]int
	for closer := range uint64(2) {
		w := check(t, closer, 1<<10, sizes)
		for i, n := range w.cables[0].Carried() {
			carried[i] = max(carried[i], n)
		}
	}
	if carried[0] < helloSize+40 || carried[1] < helloSize+30 {
		t.Fatalf("a transport carries only %d bytes", carried)
	}
	second := 41 // the step between the bytes at which the second transport is cut
	if os.Getenv("BOWLINE_PIPE_CASES") != "" {
		second = 1
	}
	for closer := range uint64(2) {
		for side := range 2 {
			for _, swallow := range []bool{false, true} {
				for at := range carried[side] {
					first := leg{Plan: plan(side, at+1, swallow)}
					check(t, closer, 1<<10, sizes, first)
					for other := range 2 {
						for again := at % second; again < carried[other]; again += second {
							check(t, closer, 1<<10, sizes, first, leg{Plan: plan(other, again+1, !swallow)})
						}
					}
				}
			}
		}
	}
}

func plan(side, at int, swallow bool) pipetest.Plan {
	p := pipetest.Plan{Swallow: swallow, Most: 7}
	p.CutAfter[side] = at
	return p
}

// TestRandomCuts: long exchanges in both directions at once, over transports that are cut, that swallow, that
// fail at once, and whose HELLO comes when a newer one is in use.
func TestRandomCuts(t *testing.T) {
	first := *seed
	if first == 0 {
		first = rand.Uint64() >> 1
	}
	n := cases(t, 300)
	t.Logf("%d cases; repeat them with -seed=%d", n, first)
	for i := range uint64(n) {
		r := rand.New(rand.NewPCG(first+i, 0))
		window := 1 << (8 + r.IntN(12))
		sizes := [2]int{r.IntN(4 * window), r.IntN(4 * window)}
		check(t, first+i, window, sizes, randomLegs(r, max(sizes[0], sizes[1]))...)
		if t.Failed() {
			t.Fatalf("the case of -seed=%d failed", first+i)
		}
	}
}

func randomLegs(r *rand.Rand, size int) []leg {
	legs := make([]leg, r.IntN(12))
	for i := range legs {
		l := &legs[i]
		l.Capacity = 1 << (4 + r.IntN(13))
		l.Most = r.IntN(2) * (1 + r.IntN(5000))
		l.CutAfter[r.IntN(2)] = 1 + r.IntN(200+r.IntN(1+size))
		l.Swallow = r.IntN(3) == 0
		l.dead = r.IntN(8) == 0
		if r.IntN(4) == 0 {
			l.late = time.Duration(r.IntN(40_000)) * time.Millisecond
		}
	}
	return legs
}

// TestLargeExchange moves more than the window in both directions, so that both ends are full at once, with
// the real sizes.
func TestLargeExchange(t *testing.T) {
	for _, legs := range [][]leg{nil, {{Plan: plan(0, 3<<20, false)}, {Plan: plan(1, 4<<20, true)}}} {
		t.Run(fmt.Sprint(len(legs)), func(t *testing.T) {
			for i := range legs {
				legs[i].Most = 0
			}
			check(t, 1, DefaultWindow, [2]int{12 << 20, 12 << 20}, legs...)
		})
	}
}
