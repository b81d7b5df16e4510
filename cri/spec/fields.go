package spec

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	helper "k8s.io/component-helpers/resource"

	"github.com/bowline-k8s/bowline/pod"
)

// FieldValue returns the value of a fieldRef: metadata.name, .namespace, .uid, .labels,
// .annotations, .labels['key'], .annotations['key'], spec.nodeName, spec.serviceAccountName,
// status.hostIP(s), status.podIP(s).
func FieldValue(p *v1.Pod, ref *v1.ObjectFieldSelector, in FieldInput) (string, error) {
	if ref.APIVersion != "" && ref.APIVersion != "v1" {
		return "", fmt.Errorf("unsupported pod version: %s", ref.APIVersion)
	}
	if head, key, ok := subscript(ref.FieldPath); ok {
		return subscripted(p, ref.FieldPath, head, key)
	}
	switch ref.FieldPath {
	case "metadata.name":
		return p.Name, nil
	case "metadata.namespace":
		return p.Namespace, nil
	case "metadata.uid":
		return string(p.UID), nil
	case "metadata.labels":
		return formatMap(p.Labels), nil
	case "metadata.annotations":
		return formatMap(p.Annotations), nil
	case "spec.nodeName", "spec.host":
		if p.Spec.NodeName == "" {
			return in.NodeName, nil
		}
		return p.Spec.NodeName, nil
	case "spec.serviceAccountName":
		return p.Spec.ServiceAccountName, nil
	case "status.hostIP":
		return first(in.HostIPs), nil
	case "status.hostIPs":
		return strings.Join(in.HostIPs, ","), nil
	case "status.podIP":
		return first(in.PodIPs), nil
	case "status.podIPs":
		return strings.Join(in.PodIPs, ","), nil
	}
	return "", fmt.Errorf("unsupported fieldPath: %s", ref.FieldPath)
}

func first(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return list[0]
}

// subscript splits "metadata.labels['key']".
func subscript(path string) (head, key string, ok bool) {
	body, ok := strings.CutSuffix(path, "']")
	if !ok {
		return "", "", false
	}
	head, key, ok = strings.Cut(body, "['")
	return head, key, ok && head != ""
}

func subscripted(p *v1.Pod, path, head, key string) (string, error) {
	name, values := key, p.Labels
	switch head {
	case "metadata.labels":
	case "metadata.annotations":
		name, values = strings.ToLower(key), p.Annotations
	default:
		return "", fmt.Errorf("fieldPath %q does not support subscript", path)
	}
	if faults := validation.IsQualifiedName(name); len(faults) > 0 {
		return "", fmt.Errorf("invalid key subscript in %s: %s", path, strings.Join(faults, ";"))
	}
	return values[key], nil
}

// formatMap formats m as lines key="value", sorted.
func formatMap(m map[string]string) string {
	var lines []string
	for _, key := range slices.Sorted(maps.Keys(m)) {
		lines = append(lines, key+"="+strconv.Quote(m[key]))
	}
	return strings.Join(lines, "\n")
}

// ResourceValue returns the value of a resourceFieldRef in units of its divisor, rounded up. If the
// reference names no container, it uses c, the container that has the reference. If a limit is not
// set, it uses the pod-level limit, or else the node's allocatable.
func ResourceValue(p *v1.Pod, c *v1.Container, ref *v1.ResourceFieldSelector, allocatable v1.ResourceList) (string, error) {
	if ref.ContainerName != "" {
		if c = pod.Find(pod.Containers(&p.Spec), ref.ContainerName); c == nil {
			return "", fmt.Errorf("container %s not found", ref.ContainerName)
		}
	}
	if c == nil {
		return "", fmt.Errorf("resource %s: no container named", ref.Resource)
	}
	kind, name, _ := strings.Cut(ref.Resource, ".")
	resourceName := v1.ResourceName(name)
	plain := resourceName == v1.ResourceCPU || resourceName == v1.ResourceMemory || resourceName == v1.ResourceEphemeralStorage
	if !plain && !strings.HasPrefix(name, v1.ResourceHugePagesPrefix) {
		return "", fmt.Errorf("unsupported container resource : %s", ref.Resource)
	}
	var amount resource.Quantity
	switch kind {
	case "requests":
		amount = c.Resources.Requests[resourceName]
	case "limits":
		amount = c.Resources.Limits[resourceName]
		if amount.IsZero() && plain { // huge pages are never overcommitted
			amount = podLimit(p, resourceName, allocatable)
		}
	default:
		return "", fmt.Errorf("unsupported container resource : %s", ref.Resource)
	}
	divisor := ref.Divisor
	if divisor.IsZero() {
		divisor = resource.MustParse("1")
	}
	value, unit := amount.Value(), divisor.Value()
	if resourceName == v1.ResourceCPU {
		value, unit = amount.MilliValue(), divisor.MilliValue()
	}
	return strconv.FormatInt(int64(math.Ceil(float64(value)/float64(unit))), 10), nil
}

func podLimit(p *v1.Pod, name v1.ResourceName, allocatable v1.ResourceList) resource.Quantity {
	if helper.IsPodLevelLimitsSet(p) && helper.IsSupportedPodLevelResource(name) {
		if limit := p.Spec.Resources.Limits[name]; !limit.IsZero() {
			return limit
		}
	}
	return allocatable[name]
}
