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
