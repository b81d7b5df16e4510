package labtest

import (
	"fmt"
	"io"
	"strings"
)

// Table writes a Markdown table with aligned columns; its first line is the head.
func Table(w io.Writer, table [][]string) {
	width := make([]int, len(table[0]))
	for _, line := range table {
		for i, cell := range line {
			width[i] = max(width[i], len([]rune(cell)))
		}
	}
	write := func(line []string) {
		for i, cell := range line {
			fmt.Fprintf(w, "| %s%s ", cell, strings.Repeat(" ", width[i]-len([]rune(cell))))
		}
		fmt.Fprintln(w, "|")
	}
	write(table[0])
	rule := make([]string, len(width))
	for i, n := range width {
		rule[i] = strings.Repeat("-", n)
	}
	write(rule)
	for _, line := range table[1:] {
		write(line)
	}
}
