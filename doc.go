// Package bowline holds the tests that guard the house: who may import whom.
// The program is in cmd/bowline; ARCHITECTURE.md is the way in.
package bowline
