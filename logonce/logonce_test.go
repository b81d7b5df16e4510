package logonce

import (
	"errors"
	"testing"
)

func TestChanged(t *testing.T) {
	var f Failure
	for i, c := range []struct {
		err  error
		want bool
	}{
		{nil, false}, {errors.New("a"), true}, {errors.New("a"), false}, {errors.New("b"), true},
		{nil, true}, {nil, false}, {errors.New(""), true}, {errors.New(""), false}, {nil, true},
	} {
		if got := f.Changed(c.err); got != c.want {
			t.Errorf("outcome %d, %v: changed %v", i, c.err, got)
		}
	}
}
