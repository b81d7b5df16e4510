// Package kubelettest compares metrics with those that the source of the kubelet declares. Its tests
// write the table of a kubelet's families from that source, which the main module does not import.
package kubelettest

import (
	_ "embed"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/component-base/metrics"
)

// Family is a family of metrics, without its values.
type Family struct {
	Name string
	// Type is counter, gauge or histogram; empty if a collector decides it.
	Type string
	// Labels are in alphabetical order.
	Labels []string
	// Buckets are the upper bounds of a histogram.
	Buckets []float64
}

// families.txt has a line for each family: its name, its type or "-", its labels or "-", and its
// buckets, each with commas in between. TestFamilies writes it.
//
//go:embed families.txt
var families string

// Families returns the families that the kubelet's own packages declare, by name: those at /metrics,
// /metrics/probes and /metrics/resource.
func Families() map[string]Family {
	all := map[string]Family{}
	for line := range strings.Lines(families) {
		if v := strings.Fields(line); len(v) >= 3 && v[0] != "#" {
			f := Family{Name: v[0], Type: strings.Trim(v[1], "-"), Labels: list(v[2])}
			for _, b := range v[3:] {
				for _, bound := range list(b) {
					n, _ := strconv.ParseFloat(bound, 64)
					f.Buckets = append(f.Buckets, n)
				}
			}
			all[f.Name] = f
		}
	}
	return all
}

func list(text string) []string {
	if text == "-" {
		return nil
	}
	return strings.Split(text, ",")
}

// line is a family as families.txt has it.
func (f Family) line() string {
	kind, labels := f.Type, strings.Join(f.Labels, ",")
	if kind == "" {
		kind = "-"
	}
	if labels == "" {
		labels = "-"
	}
	out := f.Name + " " + kind + " " + labels
	var bounds []string
	for _, b := range f.Buckets {
		bounds = append(bounds, strconv.FormatFloat(b, 'g', 6, 64))
	}
	if len(bounds) > 0 {
		out += " " + strings.Join(bounds, ",")
	}
	return out
}

// Differs says how f differs from the kubelet's family of the same name; empty if it does not. A
// kubelet with an empty type has a collector, whose type only a scrape shows.
func (f Family) Differs(kubelet Family) string {
	if f.Type == "" || kubelet.Type == "" {
		f.Type, kubelet.Type = "", ""
	}
	if have, want := f.line(), kubelet.line(); have != want {
		return fmt.Sprintf("%q, the kubelet has %q", have, want)
	}
	return ""
}

// Recorder is a registry that records the families that are registered with it.
type Recorder struct {
	metrics.KubeRegistry
	Families map[string]Family
}

// NewRecorder returns a Recorder.
func NewRecorder() *Recorder {
	return &Recorder{KubeRegistry: metrics.NewKubeRegistry(), Families: map[string]Family{}}
}

// MustRegister implements metrics.KubeRegistry.
func (r *Recorder) MustRegister(all ...metrics.Registerable) {
	r.KubeRegistry.MustRegister(all...)
	for _, m := range all {
		f := Family{Type: typeOf(m)}
		switch h := m.(type) {
		case *metrics.Histogram:
			f.Buckets = buckets(h.Buckets)
		case *metrics.HistogramVec:
			f.Buckets = buckets(h.Buckets)
		}
		r.record(m, f)
	}
}

// CustomMustRegister implements metrics.KubeRegistry.
func (r *Recorder) CustomMustRegister(all ...metrics.StableCollector) {
	r.KubeRegistry.CustomMustRegister(all...)
	for _, c := range all {
		r.record(c, Family{})
	}
}

// buckets are the bounds of a histogram whose options have these.
func buckets(bounds []float64) []float64 {
	if bounds == nil {
		return metrics.DefBuckets
	}
	return bounds
}

// record records the families of c, each with the type and the buckets of f.
func (r *Recorder) record(c interface{ Describe(chan<- *prometheus.Desc) }, f Family) {
	described := make(chan *prometheus.Desc)
	go func() {
		defer close(described)
		c.Describe(described)
	}()
	for d := range described {
		v := description.FindStringSubmatch(d.String())
		if v == nil {
			continue
		}
		f.Name, f.Labels = v[1], nil
		if v[2] != "" {
			f.Labels = strings.Split(v[2], ",")
			slices.Sort(f.Labels)
		}
		r.Families[f.Name] = f
	}
}

// description is the form of prometheus.Desc's String, which is its only reader.
var description = regexp.MustCompile(`^Desc\{fqName: "([^"]*)".*variableLabels: \{([^}]*)\}\}$`)

// typeOf is the type of a metric: histogram of a *metrics.HistogramVec.
func typeOf(m metrics.Registerable) string {
	name := strings.ToLower(reflect.TypeOf(m).Elem().Name())
	for _, kind := range []string{"counter", "gauge", "histogram"} {
		if strings.HasPrefix(name, kind) {
			return kind
		}
	}
	return name
}
