package pod

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/bowline-k8s/bowline/test/corpus"
)

// TestHugeQuantities: an annotation of a sandbox comes from the host. One number in it must not cost
// the process more than its text.
func TestHugeQuantities(t *testing.T) {
	for _, text := range []string{
		`"1e2000000000"`, `1e2000000000`, `"1E+2000000000"`, `"-1.5e-2000000000"`,
		`"1e0001000"`, `"e2000000000"`, `"1e2000000000 "`, `"\u00a0\n1e2000000000"`, `"-.E2000000000"`, `"` + strings.Repeat("9", 5000) + `"`, `"` + strings.Repeat("9", 5000) + `Gi"`,
	} {
		if _, ok := ParseAllocation(`{"containers":{"app":{"limits":{"cpu":` + text + `}}}}`); ok {
			t.Errorf("%.40s was accepted", text)
		}
	}
	for _, text := range []string{`"1"`, `"100m"`, `"1e3"`, `"1E3"`, `"12E"`, `"2Ei"`, `"1.5Gi"`, `0.5`, `"1e-3"`} {
		if _, ok := ParseAllocation(`{"containers":{"app":{"limits":{"cpu":` + text + `}}}}`); !ok {
			t.Errorf("%s was refused", text)
		}
	}
}

// TestWhereQuantitiesAre: a quantity is checked wherever the decoder of a pod decodes one, and no
// other text is taken for one.
func TestWhereQuantitiesAre(t *testing.T) {
	const huge = `"1e2000000000"`
	for _, text := range []string{
		`{"spec":{"containers":[{"resources":{"limits":{"cpu":` + huge + `}}}]}}`,
		`{"spec":{"containers":[{"resources":{"limits":{"cpu":` + huge + `},"limits":{}}}]}}`,
		`{"spec":{"containers":[{"resources":{"limits":{"cpu":` + huge + `}}}],"containers":[]}}`,
		`{"SPEC":{"Containers":[{"Resources":{"Requests":{"cpu":` + huge + `}}}]}}`,
		`{"spec":{"initContainers":[{"env":[{"valueFrom":{"resourceFieldRef":{"divisor":` + huge + `}}}]}]}}`,
		`{"spec":{"volumes":[{"emptyDir":{"sizeLimit":` + huge + `}}]}}`,
		`{"spec":{"volumes":[{"ephemeral":{"volumeClaimTemplate":{"spec":{"resources":{"requests":{"storage":` + huge + `}}}}}}]}}`,
		`{"spec":{"overhead":{"cpu":` + huge + `}}}`,
		`{"status":{"containerStatuses":[{"allocatedResources":{"cpu":` + huge + `}}]}}`,
	} {
		if err := CheckQuantities([]byte(text), &v1.Pod{}); err == nil {
			t.Errorf("%s passed", text)
		}
	}
	for _, text := range []string{
		`{"metadata":{"name":"3e1234567","labels":{"commit":"3e1234567"},"annotations":{"a":` + huge + `}}}`,
		`{"spec":{"containers":[{"image":"3e1234567","args":[` + huge + `],"env":[{"name":"A","value":"3e1234567"}]}]}}`,
		`{"spec":{"priority":1,"unknown":{"cpu":` + huge + `}}}`,
		`{"spec":{"containers":[{"resources":{"limits":{"cpu":"1e3","memory":1.5,"example.com/gpu":"2Ei"}}}]}}`,
		`null`, `[]`, `"1"`,
	} {
		if err := CheckQuantities([]byte(text), &v1.Pod{}); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
	for _, text := range []string{``, `{`, `{"spec":`, strings.Repeat("[", 1<<20)} {
		if err := CheckQuantities([]byte(text), &v1.Pod{}); err == nil {
			t.Errorf("%.40s passed", text)
		}
	}
	// The decoder of a map keeps what an earlier key of the same name gave it.
	if _, ok := ParseAllocation(`{"containers":{"app":{"limits":{"cpu":` + huge + `},"limits":{}}}}`); ok {
		t.Error("an allocation with a huge quantity below a repeated key was accepted")
	}
}

// FuzzQuantities: what CheckQuantities passes is decoded, compared and printed in bounded time.
func FuzzQuantities(f *testing.F) {
	for _, text := range []string{"1", "1e3", "1E", "2Ei", "1.5Gi", "-1e-9", "1e999", "+.5m", "e10000050", "1ee5", "1e+-5", "0e99999999"} {
		f.Add(text)
	}
	corpus.Add(f)
	one := resource.MustParse("1")
	f.Fuzz(func(t *testing.T, text string) {
		b, err := json.Marshal(text)
		if err != nil || CheckQuantities(b, one) != nil {
			return
		}
		began := time.Now()
		var q resource.Quantity
		if json.Unmarshal(b, &q) == nil {
			_ = q.Cmp(one)
			_ = q.String()
			_ = q.MilliValue()
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("%q took %s", text, took)
		}
	})
}

// FuzzAllocation reads any annotation of a sandbox or a container as an allocation or a size.
func FuzzAllocation(f *testing.F) {
	f.Add(`{"pod":{"limits":{"cpu":"1"}},"containers":{"app":{"requests":{"memory":"1Gi"}}}}`)
	f.Add(`{"containers":{"app":{"limits":{"cpu":1e3}}}}`)
	f.Add(`{"cpuRequest":5,"memoryLimit":-1}`)
	corpus.Add(f)
	p := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{Name: "app"}}}}
	f.Fuzz(func(t *testing.T, text string) {
		_ = ParseSize(text)
		a, ok := ParseAllocation(text)
		if !ok {
			return
		}
		_ = a.Apply(p)
		if again, ok := ParseAllocation(a.String()); !ok || again.String() != a.String() {
			t.Errorf("%q is not read again: %+v", a.String(), again)
		}
	})
}
