package config

import (
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

func validateShutdown(at func(...string) *field.Path, n *NodeSettings) field.ErrorList {
	var errs field.ErrorList
	whole, critical := n.ShutdownGracePeriod.Duration, n.ShutdownGracePeriodCriticalPods.Duration
	for _, f := range []struct {
		name  string
		value time.Duration
	}{{"shutdownGracePeriod", whole}, {"shutdownGracePeriodCriticalPods", critical}} {
		if f.value != 0 && f.value < time.Second {
			errs = append(errs, field.Invalid(at(f.name), f.value.String(), "0, or at least 1s"))
		}
	}
	if critical > whole {
		errs = append(errs, field.Invalid(at("shutdownGracePeriodCriticalPods"), critical.String(), "not more than shutdownGracePeriod"))
	}
	list := at("shutdownGracePeriodByPodPriority")
	if len(n.ShutdownGracePeriodByPodPriority) > 0 && (whole > 0 || critical > 0) {
		errs = append(errs, field.Forbidden(list, "not together with shutdownGracePeriod or shutdownGracePeriodCriticalPods"))
	}
	seen := map[int32]bool{}
	for i, p := range n.ShutdownGracePeriodByPodPriority {
		if seen[p.Priority] {
			errs = append(errs, field.Duplicate(list.Index(i).Child("priority"), p.Priority))
		}
		seen[p.Priority] = true
		if s := p.ShutdownGracePeriodSeconds; s < 0 || s > int64(24*time.Hour/time.Second) {
			errs = append(errs, field.Invalid(list.Index(i).Child("shutdownGracePeriodSeconds"), s, "not less than 0, and a day at most"))
		}
	}
	return errs
}
