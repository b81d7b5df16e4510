package node

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/config"
)

func TestShutdownPeriods(t *testing.T) {
	seconds := func(n int) metav1.Duration { return metav1.Duration{Duration: time.Duration(n) * time.Second} }
	of := func(all, critical int, by ...config.ShutdownGracePeriodByPodPriority) *config.Host {
		c := &config.Host{}
		c.ShutdownGracePeriod, c.ShutdownGracePeriodCriticalPods, c.ShutdownGracePeriodByPodPriority = seconds(all), seconds(critical), by
		return c
	}
	for _, c := range []struct {
		cfg  *config.Host
		want string
	}{
		{of(0, 0), "[]"},
		{of(30, 10), "[{0 20s} {2000000000 10s}]"},
		{of(0, 0, config.ShutdownGracePeriodByPodPriority{Priority: 5, ShutdownGracePeriodSeconds: 60}), "[{5 1m0s}]"},
	} {
		if got := fmt.Sprint(shutdownPeriods(c.cfg)); got != c.want {
			t.Errorf("the periods are %s, want %s", got, c.want)
		}
	}
}

// TestGoingDown: a host that shuts down is not Ready, whatever else is reported. If it does not
// shut down, the reported status is shown.
func TestGoingDown(t *testing.T) {
	var shown string
	g := &goingDown{show: func(ok bool, reason, message string) { shown = fmt.Sprint(ok, " ", reason, ": ", message) }}
	is := func(want string) {
		t.Helper()
		if shown != want {
			t.Errorf("shown is %q, want %q", shown, want)
		}
	}
	g.word(true, "", "")
	is("true : ")
	g.set(true)
	is("false : node is shutting down")
	g.word(true, "", "")
	is("false : node is shutting down")
	g.word(false, "", "container runtime is down")
	is("false : [container runtime is down, node is shutting down]")
	g.word(false, "LinkDown", "no answer")
	is("false LinkDown: [no answer, node is shutting down]")
	g.set(false)
	is("false LinkDown: no answer")
	g.word(true, "", "")
	is("true : ")

	g = &goingDown{show: g.show} // before any status is reported
	g.set(true)
	is("false : [the container runtime has not reported its status yet, node is shutting down]")
}
