package main

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"time"
)

// programVersion returns what a build of Bowline prints about itself.
func programVersion(ctx context.Context, program string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, program, "version").Output()
	if err != nil {
		return "", fmt.Errorf("BOWLINE_BENCH_BASE: %s version: %w", program, err)
	}
	return strings.TrimSpace(string(out)), nil
}

// baseTable compares this build with the base; nil without one. Each cell has the ratio of the
// medians, and the medians.
func baseTable(b *bench) [][]string {
	if len(b.earlier) == 0 {
		return nil
	}
	table := [][]string{{"this build / the earlier one", "local socket", "SSH, 0 ms", "SSH, 10 ms", "SSH, 50 ms"}}
	for _, r := range append(b.figures(),
		figure{"CPU of " + b.runtimeName() + " for both waves", func(r result) float64 { return r.runtimeWork.Seconds() }, seconds, 0},
		figure{"idle CPU of the agent", func(r result) float64 { return r.idle.agent }, percent, 0},
		figure{"idle CPU of the agent, pods with a probe", func(r result) float64 { return r.idleProbed.agent }, percent, 0},
	) {
		line, measured := []string{r.name}, false
		for _, s := range []string{sysBowline, sysSSH, sysSSH10, sysSSH50} {
			ours, okOurs := median(b.results[s], r.read)
			theirs, okTheirs := median(b.earlier[s], r.read)
			if !okOurs || !okTheirs || theirs == 0 {
				line = append(line, "-")
				continue
			}
			measured = true
			line = append(line, fmt.Sprintf("%.2f: %s / %s", ours/theirs, r.show(ours), r.show(theirs)))
		}
		if measured {
			table = append(table, line)
		}
	}
	return table
}
