package config

import (
	"fmt"
	"math"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// idsUnit is what the IDs of a pod are a multiple of: a file system of 16-bit IDs fits into a pod.
const idsUnit = 1 << 16

// validateUserNamespaces has the kubelet's bounds. The first IDs are the host's own; the last ones are not
// used, because 4294967295 is no ID.
func validateUserNamespaces(p *field.Path, n *NodeSettings) field.ErrorList {
	p = p.Child("idsPerPod")
	ids := *n.UserNamespaces.IDsPerPod
	switch {
	case ids < idsUnit || ids%idsUnit != 0 || ids > math.MaxUint32:
		return field.ErrorList{field.Invalid(p, ids, fmt.Sprintf("a multiple of %d, less than 4294967296", idsUnit))}
	case 1<<32/ids-2 < int64(n.MaxPods):
		return field.ErrorList{field.Invalid(p, ids, fmt.Sprintf("there are not so many IDs for each of maxPods (%d) pods", n.MaxPods))}
	}
	return nil
}

func validateLabels(p *field.Path, labels map[string]string) field.ErrorList {
	var errs field.ErrorList
	for _, k := range sortedKeys(labels) {
		errs = append(errs, messages(p, k, validation.IsQualifiedName(k))...)
		errs = append(errs, messages(p.Key(k), labels[k], validation.IsValidLabelValue(labels[k]))...)
		// The labels that NodeRestriction allows a node to set on itself (the kubelet's own rule).
		prefix, _, ok := strings.Cut(k, "/")
		if ok && (within(prefix, "kubernetes.io") || within(prefix, "k8s.io")) && !nodeMaySet(prefix, k) {
			errs = append(errs, field.Forbidden(p.Key(k), "a node may not set this label; use node.kubernetes.io/, kubelet.kubernetes.io/ or a prefix of your own, or set it with kubectl"))
		}
	}
	return errs
}

func within(domain, parent string) bool {
	return domain == parent || strings.HasSuffix(domain, "."+parent)
}

func nodeMaySet(prefix, key string) bool {
	if within(prefix, "kubelet.kubernetes.io") || within(prefix, "node.kubernetes.io") {
		return true
	}
	return slices.Contains([]string{v1.LabelHostname, v1.LabelArchStable, v1.LabelOSStable, v1.LabelTopologyZone, v1.LabelTopologyRegion,
		v1.LabelFailureDomainBetaZone, v1.LabelFailureDomainBetaRegion, v1.LabelInstanceType, v1.LabelInstanceTypeStable,
		"beta.kubernetes.io/os", "beta.kubernetes.io/arch"}, key)
}

func validateTaints(p *field.Path, taints []v1.Taint) field.ErrorList {
	var errs field.ErrorList
	for i := range taints {
		t, at := &taints[i], p.Index(i)
		errs = append(errs, messages(at.Child("key"), t.Key, validation.IsQualifiedName(t.Key))...)
		errs = append(errs, messages(at.Child("value"), t.Value, validation.IsValidLabelValue(t.Value))...)
		errs = append(errs, oneOf(at.Child("effect"), string(t.Effect), "NoSchedule", "PreferNoSchedule", "NoExecute")...)
		for j := range i {
			if taints[j].MatchTaint(t) {
				errs = append(errs, field.Duplicate(at, t.Key+":"+string(t.Effect)))
			}
		}
	}
	return errs
}
