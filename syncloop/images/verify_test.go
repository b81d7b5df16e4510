package images

import (
	"errors"
	"testing"
)

func TestVerification(t *testing.T) {
	list := []string{"registry.example/tools/*", "registry.example:5000/app"}
	for _, c := range []struct {
		v     Verification
		image string
		ours  bool
		want  bool
	}{
		{NeverVerify, "a", true, false},
		{AlwaysVerify, "a", false, true},
		{NeverVerifyPreloadedImages, "a", true, true},
		{NeverVerifyPreloadedImages, "a", false, false},
		{NeverVerifyAllowlistedImages, "registry.example/tools/sh:1", true, false},
		{NeverVerifyAllowlistedImages, "registry.example/toolshed:1", false, true},
		{NeverVerifyAllowlistedImages, "registry.example:5000/app", false, false},
		{NeverVerifyAllowlistedImages, "registry.example:5000/app:2@sha256:00", false, false},
		{NeverVerifyAllowlistedImages, "registry.example:5000/app/other:2", false, true},
	} {
		if got := c.v.verifies(c.image, c.ours, list); got != c.want {
			t.Errorf("%s of %s, ours %v: %v", c.v, c.image, c.ours, got)
		}
	}
}

func TestChecked(t *testing.T) {
	for _, c := range []struct {
		needed, must bool
		err          error
		want         Check
	}{
		{false, false, nil, CheckNotNeeded}, {true, false, nil, CheckFound}, {true, true, nil, CheckMustPull}, {true, true, errors.New("no"), CheckFailed},
	} {
		if got := checked(c.needed, c.must, c.err); got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
}
