package pod

import (
	"cmp"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"
)

// Text formats the report. Ages are relative to now, by the reader's clock; for a report that is
// read at once, pass r.At.
func (r *WhyReport) Text(now time.Time) string {
	t := &whyText{now: now}
	t.line("%s/%s  %s", r.Namespace, r.Name, r.Phase)
	t.line("  %s", cmp.Or(r.Reason, "nothing has been decided yet"))
	t.line("")
	var facts [][]string
	if r.Node != "" {
		facts = append(facts, []string{"node", r.Node})
	}
	if e := r.Ending; e != nil {
		facts = append(facts, []string{"ending", join("; ", fmt.Sprintf("%s %s, grace %ds", e.Cause, t.ago(e.At), e.Seconds), e.Message)})
	}
	facts = append(facts, []string{"waits for", t.wait(r.Waits)}, []string{"observed", t.observed(r.Observed)}, []string{"uid", r.UID})
	t.table(facts)
	t.state(r.Observed)
	t.operations(r)
	t.decisions(r.Decisions)
	return t.b.String()
}

type whyText struct {
	b   strings.Builder
	now time.Time
}

func (t *whyText) line(format string, args ...any) {
	t.b.WriteString(strings.TrimRight(Printable(fmt.Sprintf(format, args...)), " ") + "\n")
}

func (t *whyText) title(s string) {
	t.line("")
	t.line("%s", s)
}

func (t *whyText) table(rows [][]string) {
	var out strings.Builder
	tw := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	for _, r := range rows {
		cells := make([]string, len(r))
		for i := range r {
			cells[i] = Printable(r[i])
		}
		fmt.Fprintln(tw, "  "+strings.Join(cells, "\t"))
	}
	tw.Flush() // a strings.Builder does not fail
	for l := range strings.Lines(out.String()) {
		t.line("%s", strings.TrimRight(l, "\n"))
	}
}

func (t *whyText) wait(w *WhyWait) string {
	switch {
	case w == nil:
		return "the next change"
	case w.Until.IsZero():
		return w.For
	default:
		return fmt.Sprintf("%s, %s", w.For, t.until(w.Until))
	}
}

func (t *whyText) observed(o WhyObserved) string {
	switch {
	case o.At.IsZero() && o.Stale != "":
		return "never: " + o.Stale
	case o.At.IsZero():
		return "never"
	case o.Stale != "":
		return fmt.Sprintf("%s, STALE: %s", t.ago(o.At), o.Stale)
	default:
		return t.ago(o.At)
	}
}

func (t *whyText) state(o WhyObserved) {
	if len(o.Sandboxes) > 0 {
		t.title("SANDBOXES")
		var rows [][]string
		for _, s := range o.Sandboxes {
			state := "not ready"
			if s.Ready {
				state = "ready"
			}
			rows = append(rows, []string{shortID(s.ID), fmt.Sprintf("attempt %d", s.Attempt), state, strings.Join(s.IPs, " ")})
		}
		t.table(rows)
	}
	if len(o.Containers) > 0 {
		t.title("CONTAINERS")
		var rows [][]string
		for _, c := range o.Containers {
			state := c.State
			if c.State == StateExited.String() {
				state = fmt.Sprintf("%s (%d)", c.State, c.ExitCode)
			}
			since := ""
			if !c.Since.IsZero() {
				since = t.ago(c.Since)
			}
			rows = append(rows, []string{c.Name, state, since, count(int(c.Restarts), "restart"), shortID(c.ID), c.Detail})
		}
		t.table(rows)
	}
}

func (t *whyText) operations(r *WhyReport) {
	if len(r.InFlight) > 0 {
		t.title("IN FLIGHT")
		var rows [][]string
		for _, o := range r.InFlight {
			rows = append(rows, []string{o.What, "since " + short(t.now.Sub(o.Since)), o.Reason})
		}
		t.table(rows)
	}
	if len(r.Backoffs) > 0 {
		t.title("BACK-OFFS")
		var rows [][]string
		for _, b := range r.Backoffs {
			rows = append(rows, []string{b.What, count(b.Failures, "failure"), t.until(b.Until), join(": ", b.Reason, b.Message)})
		}
		t.table(rows)
	}
}

func (t *whyText) decisions(ds []WhyDecision) {
	if len(ds) == 0 {
		return
	}
	t.title("DECISIONS (newest first)")
	for i := len(ds) - 1; i >= 0; i-- {
		d := ds[i]
		when := d.At.Local().Format(time.TimeOnly)
		if d.Times > 1 {
			when = fmt.Sprintf("%s to %s, %d times", when, d.Last.Local().Format(time.TimeOnly), d.Times)
		}
		t.line("  %s  %s  %s", when, d.Phase, d.Reason)
		for _, a := range d.Actions {
			outcome := "running"
			if a.Outcome != "" {
				outcome = a.Outcome
				if took := a.Ended.Sub(d.At); !a.Ended.IsZero() && took >= 100*time.Millisecond {
					outcome = fmt.Sprintf("%s after %s", outcome, short(took))
				}
			}
			t.line("    - %s: %s", a.What, outcome)
		}
	}
}

func (t *whyText) ago(at time.Time) string {
	if d := t.now.Sub(at); d >= time.Second {
		return short(d) + " ago"
	}
	return "just now"
}

func (t *whyText) until(at time.Time) string {
	if d := at.Sub(t.now); d > 0 {
		return fmt.Sprintf("until %s (in %s)", at.Local().Format(time.TimeOnly), short(d))
	}
	return "due now"
}

// short formats a duration as kubectl does, and also durations of less than a second.
func short(d time.Duration) string {
	if d > 0 && d < time.Second {
		return d.Round(time.Millisecond).String()
	}
	return duration.HumanDuration(max(d, 0))
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func join(sep string, parts ...string) string {
	var out []string
	for _, p := range parts {
		if p != "" {
			out = append(out, p)
		}
	}
	return strings.Join(out, sep)
}

func shortID(id string) string { return id[:min(len(id), 12)] }
