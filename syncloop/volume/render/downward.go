package render

import (
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/bowline-k8s/bowline/pod"
)

func fromDownwardAPI(p *v1.Pod, items []v1.DownwardAPIVolumeFile, defaultMode fs.FileMode, s Sources) (Tree, error) {
	tree := make(Tree, len(items))
	var faults []error
	for i := range items {
		item := &items[i]
		f := File{Mode: defaultMode, UID: -1, GID: -1}
		if item.Mode != nil {
			f.Mode = mode(item.Mode)
		}
		var value string
		var err error
		switch {
		case item.FieldRef != nil:
			value, err = Field(p, item.FieldRef.FieldPath)
		case item.ResourceFieldRef != nil:
			value, err = ResourceField(p, item.ResourceFieldRef, s.Allocatable)
		}
		if err != nil {
			faults = append(faults, err)
			continue
		}
		f.Data = []byte(value)
		tree[path.Clean(item.Path)] = f
	}
	return tree, aggregate(faults)
}

// Field is the text of a pod's field that a downward API volume may name: metadata.name, namespace,
// uid, labels, annotations, and one label or annotation by ['key'].
func Field(p *v1.Pod, fieldPath string) (string, error) {
	if head, key, ok := subscript(fieldPath); ok {
		switch head {
		case "metadata.annotations":
			if faults := validation.IsQualifiedName(strings.ToLower(key)); len(faults) != 0 {
				return "", fmt.Errorf("invalid key subscript in %s: %s", fieldPath, strings.Join(faults, ";"))
			}
			return p.Annotations[key], nil
		case "metadata.labels":
			if faults := validation.IsQualifiedName(key); len(faults) != 0 {
				return "", fmt.Errorf("invalid key subscript in %s: %s", fieldPath, strings.Join(faults, ";"))
			}
			return p.Labels[key], nil
		}
		return "", fmt.Errorf("fieldPath %q does not support subscript", fieldPath)
	}
	switch fieldPath {
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
	}
	return "", fmt.Errorf("unsupported fieldPath: %v", fieldPath)
}

// subscript splits metadata.labels['key'] into its path and its key.
func subscript(fieldPath string) (head, key string, ok bool) {
	inner, ok := strings.CutSuffix(fieldPath, "']")
	if !ok {
		return "", "", false
	}
	head, key, ok = strings.Cut(inner, "['")
	return head, key, ok && head != ""
}

// formatMap writes one key="value" per line, sorted by key, without a final newline.
func formatMap(m map[string]string) string {
	var b strings.Builder
	for i, k := range slices.Sorted(maps.Keys(m)) {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(k)
		b.WriteByte('=')
		b.WriteString(strconv.Quote(m[k]))
	}
	return b.String()
}

// ResourceField is a container's limit or request in units of the divisor, rounded up. An unset
// limit for cpu, memory or ephemeral-storage reads as the node's allocatable.
func ResourceField(p *v1.Pod, ref *v1.ResourceFieldSelector, allocatable v1.ResourceList) (string, error) {
	resources, err := containerResources(p, ref.ContainerName)
	if err != nil {
		return "", err
	}
	kind, rest, _ := strings.Cut(ref.Resource, ".")
	name := v1.ResourceName(rest)
	ordinary := name == v1.ResourceCPU || name == v1.ResourceMemory || name == v1.ResourceEphemeralStorage
	huge := strings.HasPrefix(rest, v1.ResourceHugePagesPrefix)

	var q resource.Quantity
	switch {
	case kind == "limits" && (ordinary || huge):
		q = resources.Limits[name]
		if q.IsZero() && ordinary {
			// Huge pages are never overcommitted: without a limit there are none.
			q = allocatable[name]
		}
	case kind == "requests" && (ordinary || huge):
		q = resources.Requests[name]
	default:
		return "", fmt.Errorf("unsupported container resource : %v", ref.Resource)
	}

	divisor := ref.Divisor
	if divisor.IsZero() {
		divisor = resource.MustParse("1")
	}
	if name == v1.ResourceCPU {
		return ceilDiv(q.MilliValue(), divisor.MilliValue()), nil
	}
	return ceilDiv(q.Value(), divisor.Value()), nil
}

// ceilDiv divides without floats, which lose precision above 2^53.
func ceilDiv(n, d int64) string {
	if d == 0 {
		// A divisor below the resource's unit; the API server refuses it.
		d = 1
	}
	r := n / d
	if n%d > 0 {
		r++
	}
	return strconv.FormatInt(r, 10)
}

func containerResources(p *v1.Pod, name string) (*v1.ResourceRequirements, error) {
	if c := pod.Find(pod.Containers(&p.Spec), name); c != nil {
		return &c.Resources, nil
	}
	return nil, fmt.Errorf("container %s not found", name)
}
