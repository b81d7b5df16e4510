package config

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"
	sysctl "k8s.io/component-helpers/node/util/sysctl"

	"github.com/bowline-k8s/bowline/pod"
)

var sysctlPattern = regexp.MustCompile(`^([a-zA-Z0-9][-_a-zA-Z0-9]*[./])*([a-zA-Z0-9][-_a-zA-Z0-9]*\*?|\*)$`)

// validateSysctls accepts names of namespaced sysctls, and prefixes of such names that end with a
// star.
func validateSysctls(p *field.Path, patterns []string) field.ErrorList {
	var errs field.ErrorList
	for i, s := range patterns {
		ns, _, _ := sysctl.GetNamespace(s)
		switch {
		case !sysctlPattern.MatchString(s):
			errs = append(errs, field.Invalid(p.Index(i), s, "neither the name of a sysctl nor the beginning of one with a star at its end"))
		case ns == sysctl.UnknownNamespace:
			errs = append(errs, field.Invalid(p.Index(i), s, "it is of no namespace that a pod has of its own (net., kernel.shm, kernel.msg, kernel.sem, fs.mqueue., user.)"))
		}
	}
	return errs
}

func validatePressure(at func(...string) *field.Path, n *NodeSettings) field.ErrorList {
	var errs field.ErrorList
	high, low := *n.ImageGCHighThresholdPercent, *n.ImageGCLowThresholdPercent
	for _, f := range []struct {
		name  string
		value int32
	}{{"imageGCHighThresholdPercent", high}, {"imageGCLowThresholdPercent", low}} {
		if f.value < 0 || f.value > 100 {
			errs = append(errs, field.Invalid(at(f.name), f.value, "a percentage, 0 to 100"))
		}
	}
	if low >= high {
		errs = append(errs, field.Invalid(at("imageGCLowThresholdPercent"), low, "it must be less than imageGCHighThresholdPercent"))
	}
	for _, f := range []struct {
		name  string
		value time.Duration
	}{{"imageMinimumGCAge", n.ImageMinimumGCAge.Duration}, {"imageMaximumGCAge", n.ImageMaximumGCAge.Duration},
		{"evictionPressureTransitionPeriod", n.EvictionPressureTransitionPeriod.Duration}} {
		if f.value < 0 {
			errs = append(errs, field.Invalid(at(f.name), f.value.String(), "not less than 0"))
		}
	}
	if most := n.ImageMaximumGCAge.Duration; most != 0 && most <= n.ImageMinimumGCAge.Duration {
		errs = append(errs, field.Invalid(at("imageMaximumGCAge"), most.String(), "it must be more than imageMinimumGCAge"))
	}
	if n.EvictionMaxPodGracePeriod < 0 {
		errs = append(errs, field.Invalid(at("evictionMaxPodGracePeriod"), n.EvictionMaxPodGracePeriod, "not less than 0"))
	}
	amounts := func(name string, list map[string]string, parse func(string) error) {
		for _, signal := range slices.Sorted(maps.Keys(list)) {
			p := at(name).Key(signal)
			if !slices.Contains(pod.Signals, pod.Signal(signal)) {
				errs = append(errs, field.NotSupported(p, signal, pod.Signals))
			} else if err := parse(list[signal]); err != nil {
				errs = append(errs, field.Invalid(p, list[signal], err.Error()))
			}
		}
	}
	threshold := func(s string) error { _, err := pod.ParseAmount(s); return err }
	amounts("evictionHard", n.EvictionHard, threshold)
	amounts("evictionSoft", n.EvictionSoft, threshold)
	amounts("evictionMinimumReclaim", n.EvictionMinimumReclaim, threshold)
	amounts("evictionSoftGracePeriod", n.EvictionSoftGracePeriod, func(s string) error {
		d, err := time.ParseDuration(s)
		return cmp.Or(err, map[bool]error{true: fmt.Errorf("not less than 0")}[d < 0])
	})
	for _, signal := range slices.Sorted(maps.Keys(n.EvictionSoft)) {
		if n.EvictionSoftGracePeriod[signal] == "" {
			errs = append(errs, field.Required(at("evictionSoftGracePeriod").Key(signal), "evictionSoft names the signal: how long it may last"))
		}
	}
	return errs
}
