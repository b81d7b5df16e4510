package budget_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

func TestExceededNamesTheBudget(t *testing.T) {
	for _, k := range budget.Kinds() {
		err := fmt.Errorf("look: %w", budget.New(budget.Limits{}).Exceed(k, "the test"))
		var e *budget.ExceededError
		if !errors.As(err, &e) || e.Kind != k || !strings.Contains(err.Error(), k.String()) {
			t.Errorf("%v: %v", k, err)
		}
	}
}

// TestEveryBudgetHasALimit: a kind without a limit would refuse everything.
func TestEveryBudgetHasALimit(t *testing.T) {
	for _, k := range budget.Kinds() {
		if (budget.Limits{}).Of(k) <= 0 && k != budget.Panic {
			t.Errorf("%v has no default", k)
		}
	}
	if got := (budget.Limits{Items: 7}).Of(budget.Items); got != 7 {
		t.Errorf("the limit that was set is %d", got)
	}
}

func TestCheck(t *testing.T) {
	a := budget.New(budget.Limits{Items: 10})
	testutil.Must(t, a.Check(budget.Items, 10, "a list"))
	if a.Err() != nil {
		t.Fatal("exceeded by what is within the limit")
	}
	err := a.Check(budget.Items, 11, "a list")
	if err == nil || err.Error() != "budget Items of 10 exceeded by a list" {
		t.Fatal(err)
	}
	_ = a.Check(budget.Pods, 1<<40, "later")
	select {
	case <-a.Exceeded():
	default:
		t.Error("Exceeded is open")
	}
	if a.Err() == nil || a.Err().Error() != err.Error() {
		t.Errorf("the first is %v", a.Err())
	}
	u := a.Uses()[budget.Items]
	if u != (budget.Use{Kind: budget.Items, Limit: 10, Now: 11, HighWater: 11, Exceeded: 1}) {
		t.Errorf("%+v", u)
	}
}

func TestTakeIsHeldUntilReleased(t *testing.T) {
	a := budget.New(budget.Limits{Channels: 2})
	one, err := a.Take(budget.Channels, 1, "a channel")
	testutil.Must(t, err)
	two, err := a.Take(budget.Channels, 1, "a channel")
	testutil.Must(t, err)
	one()
	one() // a second call changes nothing
	if _, err := a.Take(budget.Channels, 1, "a channel"); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Take(budget.Channels, 1, "a channel"); err == nil {
		t.Fatal("a third was given")
	}
	two()
	if u := a.Uses()[budget.Channels]; u.Now != 1 || u.HighWater != 2 || u.Exceeded != 1 {
		t.Errorf("%+v", u)
	}
}

func TestAPanicIsTheAccounts(t *testing.T) {
	a := budget.New(budget.Limits{})
	var done sync.WaitGroup
	done.Add(1)
	a.Go("the parser", func() { defer done.Done(); _ = []int{}[len(a.Uses())] })
	done.Wait()
	<-a.Exceeded()
	var e *budget.ExceededError
	if !errors.As(a.Err(), &e) || e.Kind != budget.Panic || !strings.Contains(e.Error(), "the parser panicked: runtime error: index out of range") {
		t.Fatal(a.Err())
	}
	if !strings.Contains(string(a.Stack()), "budget_test.go") {
		t.Errorf("the stack does not show the place:\n%s", a.Stack())
	}
}

// TestNilAccount: a reader without an account applies the default limits, and a panic in a test
// is not hidden.
func TestNilAccount(t *testing.T) {
	var a *budget.Account
	if err := a.Check(budget.LineBytes, 1<<30, "a line"); err == nil {
		t.Error("no limit")
	}
	release, err := a.Take(budget.Channels, 1, "a channel")
	release()
	if err != nil || a.Err() != nil || a.Exceeded() != nil || a.Uses() != nil || a.Stack() != nil {
		t.Error(err)
	}
	defer func() {
		if recover() == nil {
			t.Error("the panic was hidden")
		}
	}()
	func() {
		defer a.Recover("a test")
		panic("found")
	}()
}

func TestFrom(t *testing.T) {
	a := budget.New(budget.Limits{})
	if budget.From(budget.With(t.Context(), a)) != a || budget.From(t.Context()) != nil {
		t.Error("not the account of the context")
	}
}
