// Package bowline has the tests that guard the tree as a whole, such as which package may import
// which. The program is in cmd/bowline; ARCHITECTURE.md is the introduction.
package bowline
