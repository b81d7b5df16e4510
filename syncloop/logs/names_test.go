package logs

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/bowline-k8s/bowline/test/corpus"
)

func TestChoose(t *testing.T) {
	names := func(s string) []string {
		var list []string
		for n := range strings.FieldsSeq(s) {
			list = append(list, "0.log"+n)
		}
		return list
	}
	for _, c := range []struct {
		name, have       string
		max              int
		remove, compress string
	}{
		{"a first rotation", "", 5, "", ""},
		{"the last one is compressed", ".20260102-030405", 5, "", ".20260102-030405"},
		{"what is compressed stays", ".20260102-030405.gz .20260102-030505", 5, "", ".20260102-030505"},
		{"the oldest goes", ".20260102-030105.gz .20260102-030205.gz .20260102-030305.gz .20260102-030405", 5, ".20260102-030105.gz", ".20260102-030405"},
		{"two files in all: nothing rotated stays", ".20260102-030105.gz .20260102-030205", 2, ".20260102-030105.gz .20260102-030205", ""},
		{"cut off before it was whole", ".20260102-030105 .20260102-030105.7-1.tmp", 5, ".20260102-030105.7-1.tmp", ".20260102-030105"},
		{"cut off before the other was removed", ".20260102-030105 .20260102-030105.gz", 5, ".20260102-030105", ""},
		{"fewer are wanted than before", ".1.gz .2.gz .3.gz .4", 3, ".1.gz .2.gz .3.gz", ".4"},
	} {
		t.Run(c.name, func(t *testing.T) {
			have := append(names(c.have), "0.log", "1.log", "1.log.20260102-030105")
			remove, compress := choose(have, "0.log", c.max)
			if !slices.Equal(remove, names(c.remove)) || !slices.Equal(compress, names(c.compress)) {
				t.Errorf("removes %v and compresses %v", remove, compress)
			}
		})
	}
}

// However rotations are interrupted: after a rotation there are never more than maxFiles, the
// newest remain, and no file is in both lists.
func TestChooseKeepsTheNewest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		maxFiles := rapid.IntRange(2, 8).Draw(t, "maxFiles")
		var have, stems []string
		for i := range rapid.IntRange(0, 12).Draw(t, "rotated") {
			n := fmt.Sprintf("0.log.%04d", i)
			switch rapid.SampledFrom([]string{"plain", "packed", "both", "cut"}).Draw(t, n) {
			case "plain":
				have = append(have, n)
			case "packed":
				have = append(have, n+".gz")
			case "both":
				have = append(have, n, n+".gz")
			case "cut":
				have = append(have, n, n+".x.tmp")
			}
			stems = append(stems, n)
		}
		remove, compress := choose(have, "0.log", maxFiles)
		left := map[string]int{}
		for _, n := range have {
			if !slices.Contains(remove, n) {
				left[strings.TrimSuffix(n, ".gz")]++
			}
		}
		want := stems[max(0, len(stems)-(maxFiles-2)):]
		if len(left) != len(want) {
			t.Fatalf("%v is left, want %v", left, want)
		}
		for _, n := range want {
			if left[n] != 1 {
				t.Fatalf("%d of %s are left", left[n], n)
			}
		}
		for _, n := range compress {
			if slices.Contains(remove, n) || left[n] != 1 {
				t.Fatalf("%s is compressed, and removed or there twice", n)
			}
		}
	})
}

func TestRotatedName(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 999, time.FixedZone("east", 3600))
	for _, c := range []struct{ have, want string }{
		{"0.log", "0.log.20260102-020405"},
		{"0.log.20260102-020404", "0.log.20260102-020405"},
		{"0.log.20260102-020405", "0.log.20260102-020406"},
		{"0.log.20260102-020405.gz", "0.log.20260102-020406"},
		{"0.log.20270101-000000.gz", "0.log.20270101-000001"}, // a clock was set back
		{"1.log.20270101-000000.gz 0.log.old", "0.log.20260102-020405"},
	} {
		if got := rotatedName(strings.Fields(c.have), "0.log", now); got != c.want {
			t.Errorf("beside %s: %s, want %s", c.have, got, c.want)
		}
	}
}

// FuzzNames chooses among any names in a container's log directory.
func FuzzNames(f *testing.F) {
	f.Add("0.log\n0.log.20260101-000000\n0.log.20260102-000000.gz\n0.log.x.tmp", 3)
	f.Add("0.log\n0.log.99991231-235959", 2)
	corpus.Add(f)
	f.Fuzz(func(t *testing.T, text string, most int) {
		names := strings.Split(text, "\n")
		remove, compress := choose(names, "0.log", most)
		for _, n := range append(slices.Clone(remove), compress...) {
			if !strings.HasPrefix(n, "0.log.") || !slices.Contains(names, n) {
				t.Errorf("%q is no rotated log of %q", n, names)
			}
		}
		for _, n := range compress {
			if slices.Contains(remove, n) {
				t.Errorf("%q is removed and compressed", n)
			}
		}
		now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		if n := rotatedName(names, "0.log", now); slices.Contains(names, n) {
			t.Errorf("%q is there already", n)
		}
	})
}
