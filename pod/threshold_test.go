package pod

import "testing"

func TestParseAmount(t *testing.T) {
	for _, tc := range []struct {
		text string
		of   int64
		want int64
	}{
		{"100Mi", 1 << 40, 100 << 20}, {"10%", 1000, 100}, {"7.5%", 1000, 75}, {"0%", 1000, 0}, {"100%", 1000, 1000}, {"0", 7, 0}, {"1500", 0, 1500},
	} {
		a, err := ParseAmount(tc.text)
		if err != nil || a.Of(tc.of) != tc.want || a.String() == "" {
			t.Errorf("%s of %d: %d (%s), %v; want %d", tc.text, tc.of, a.Of(tc.of), a, err, tc.want)
		}
	}
	for _, bad := range []string{"", "%", "-1%", "101%", "much", "-5", "5 %", "10%%"} {
		if a, err := ParseAmount(bad); err == nil {
			t.Errorf("%q is %+v", bad, a)
		}
	}
	if a, _ := ParseAmount("10%"); a.String() != "10%" {
		t.Errorf("it is written %s", a)
	}
}
