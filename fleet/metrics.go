package fleet

import (
	"errors"
	"maps"
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/bowline-k8s/bowline/host/budget"
)

// hostBudgets collects the budget accounts of this process's hosts as metrics.
type hostBudgets struct {
	metrics.BaseStableCollector

	mu     sync.Mutex
	byHost map[string]*hostBudget
}

type hostBudget struct {
	account  *budget.Account         // of the driver that started last
	exceeded map[budget.Kind]float64 // how many drivers ended by exceeding it
}

var budgets = &hostBudgets{byHost: map[string]*hostBudget{}}

func init() { legacyregistry.CustomMustRegister(budgets) }

func (b *hostBudgets) begin(name string, a *budget.Account) {
	b.mu.Lock()
	defer b.mu.Unlock()
	h := b.byHost[name]
	if h == nil {
		h = &hostBudget{exceeded: map[budget.Kind]float64{}}
		b.byHost[name] = h
	}
	h.account = a
}

func (b *hostBudgets) exceeded(name string, err error) {
	var e *budget.ExceededError
	b.mu.Lock()
	defer b.mu.Unlock()
	if h := b.byHost[name]; h != nil && errors.As(err, &e) {
		h.exceeded[e.Kind]++
	}
}

// keep drops the hosts that are gone.
func (b *hostBudgets) keep(gone func(host string) bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	maps.DeleteFunc(b.byHost, func(host string, _ *hostBudget) bool { return gone(host) })
}

var (
	descHighWater = metrics.NewDesc("bowline_host_budget_high_water",
		"The most that a host has used of a budget since Bowline last started to manage it, in the unit of the budget.",
		[]string{"host", "budget"}, nil, metrics.ALPHA, "")
	descQuarantines = metrics.NewDesc("bowline_host_quarantines_total",
		"How often a host was quarantined, by the budget that it exceeded.",
		[]string{"host", "budget"}, nil, metrics.ALPHA, "")
)

// DescribeWithStability implements metrics.StableCollector.
func (b *hostBudgets) DescribeWithStability(ch chan<- *metrics.Desc) {
	ch <- descHighWater
	ch <- descQuarantines
}

// CollectWithStability implements metrics.StableCollector.
func (b *hostBudgets) CollectWithStability(ch chan<- metrics.Metric) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for name, h := range b.byHost {
		for _, u := range h.account.Uses() {
			if u.Kind != budget.Panic {
				ch <- metrics.NewLazyConstMetric(descHighWater, metrics.GaugeValue, float64(u.HighWater), name, u.Kind.String())
			}
		}
		for kind, n := range h.exceeded {
			ch <- metrics.NewLazyConstMetric(descQuarantines, metrics.CounterValue, n, name, kind.String())
		}
	}
}
