package admit

import (
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func amounts(cpu, memory string) v1.ResourceList {
	return v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu), v1.ResourceMemory: resource.MustParse(memory)}
}

func asks(cpu, memory string) *v1.Pod {
	p := &v1.Pod{}
	p.Spec.Containers = []v1.Container{{Name: "c", Resources: v1.ResourceRequirements{Requests: amounts(cpu, memory)}}}
	return p
}

func TestFitsResized(t *testing.T) {
	node := amounts("2", "1Gi")
	whole := asks("1", "1Mi")
	whole.Spec.Resources = &v1.ResourceRequirements{Requests: amounts("1500m", "1Mi")}
	for _, c := range []struct {
		name   string
		pod    *v1.Pod
		others []*v1.Pod
		node   v1.ResourceList
		want   string
	}{
		{name: "all that is left", pod: asks("1500m", "1023Mi"), others: []*v1.Pod{asks("500m", "1Mi")}, node: node},
		{name: "a thousandth too much", pod: asks("1501m", "1Mi"), others: []*v1.Pod{asks("300m", "1Mi"), asks("200m", "1Mi")}, node: node,
			want: "Node didn't have enough resource: cpu, requested: 1501, used: 500, capacity: 2000"},
		{name: "a byte too much", pod: asks("1", "1073741825"), node: node,
			want: "Node didn't have enough resource: memory, requested: 1073741825, used: 0, capacity: 1073741824"},
		{name: "CPU is reported first", pod: asks("3", "2Gi"), node: node,
			want: "Node didn't have enough resource: cpu, requested: 3000, used: 0, capacity: 2000"},
		{name: "nothing of what is short", pod: asks("0", "1Mi"), others: []*v1.Pod{asks("3", "1Mi")}, node: node},
		{name: "the pod as a whole", pod: asks("600m", "1Mi"), others: []*v1.Pod{whole}, node: node,
			want: "Node didn't have enough resource: cpu, requested: 600, used: 1500, capacity: 2000"},
		{name: "a node of which nothing is known", pod: asks("9", "9Gi")},
	} {
		r := FitsResized(c.pod, c.others, c.node)
		if (r == nil) != (c.want == "") || r != nil && r.Message != c.want {
			t.Errorf("%s: %+v, want %q", c.name, r, c.want)
		}
	}
}

func TestBefore(t *testing.T) {
	priority := func(n int32, c Candidate) Candidate {
		p := c.Wanted.DeepCopy()
		p.Spec.Priority = &n
		c.Wanted = p
		return c
	}
	since := func(seconds int64) metav1.Time { return metav1.NewTime(time.Unix(seconds, 0)) }
	grows := Candidate{Wanted: asks("2", "1Mi"), Given: asks("1", "1Mi"), Since: since(5)}
	shrinks := Candidate{Wanted: asks("1", "1Mi"), Given: asks("2", "1Mi"), Since: since(9)}
	guaranteed, older := grows, grows
	guaranteed.Class, guaranteed.Since = v1.PodQOSGuaranteed, since(8)
	older.Since = since(1)
	order := []Candidate{shrinks, priority(7, grows), guaranteed, older, grows}
	for i := range order {
		for j := range order {
			if got, want := Before(order[i], order[j]), i-j; got < 0 != (want < 0) || got > 0 != (want > 0) {
				t.Errorf("Before(%d, %d) is %d", i, j, got)
			}
		}
	}
	shuffled := []Candidate{order[3], order[0], order[4], order[2], order[1]}
	slices.SortFunc(shuffled, Before)
	for i := range order {
		if Before(shuffled[i], order[i]) != 0 {
			t.Errorf("place %d", i)
		}
	}
}
