package readiness

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// A runtime that cannot be reached is not necessarily down.
func TestReadiness(t *testing.T) {
	for _, tc := range []struct {
		name  string
		steps func(r *Reporter)
		want  []string
	}{
		{"a near runtime is believed at once", func(r *Reporter) {
			r.Delay = 0
			r.Set(true, "", "")
			r.Set(false, "down", "")
		}, []string{"0s ready", "0s down"}},
		{"a far one when the link has not gone either", func(r *Reporter) {
			r.Set(true, "", "")
			r.Set(false, "down", "")
			time.Sleep(time.Hour)
		}, []string{"0s ready", "12s down"}},
		{"it is back before that", func(r *Reporter) {
			r.Set(true, "", "")
			r.Set(false, "down", "")
			time.Sleep(5 * time.Second)
			r.Set(true, "", "")
			time.Sleep(time.Hour)
		}, []string{"0s ready", "5s ready"}},
		{"the link goes, and comes back in time", func(r *Reporter) {
			r.Set(true, "", "")
			r.Set(false, "no answer", "")
			time.Sleep(9 * time.Second)
			r.link(false, false, "")
			r.Set(false, "no answer still", "")
			time.Sleep(20 * time.Second)
			r.link(true, false, "")
			r.Set(true, "", "")
			time.Sleep(time.Hour)
		}, []string{"0s ready", "29s ready"}},
		{"the link stays away", func(r *Reporter) {
			r.Set(true, "", "")
			r.link(false, false, "")
			time.Sleep(40 * time.Second)
			r.link(false, true, "gone")
			r.Set(false, "no answer", "")
			time.Sleep(time.Minute)
			r.link(true, false, "")
			time.Sleep(time.Second)
			r.Set(true, "", "")
		}, []string{"0s ready", "40s LinkDown", "1m41s ready"}},
		{"the runtime did not survive the link", func(r *Reporter) {
			r.Set(true, "", "")
			r.link(false, false, "")
			r.Set(false, "no answer", "")
			time.Sleep(20 * time.Second)
			r.link(true, false, "")
			r.Set(false, "refused", "")
			time.Sleep(time.Minute)
		}, []string{"0s ready", "32s refused"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				var got []string
				r := &Reporter{Delay: LinkVerdict, Write: func(ok bool, reason, _ string) {
					if ok {
						reason = "ready"
					}
					got = append(got, fmt.Sprint(time.Since(began), " ", reason))
				}}
				tc.steps(r)
				synctest.Wait()
				if diff := cmp.Diff(tc.want, got); diff != "" {
					t.Errorf("want - and got +:\n%s", diff)
				}
			})
		})
	}
}
