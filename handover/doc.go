// Package handover prepares a machine to be a node, and undoes that when the machine is released.
//
// Prepare shows and applies the fixes that are safe. The pure Decide derives each from what
// hostcheck found. One file below the root directory of the machine records each change with the
// previous content, before anything is changed. Undo restores exactly that, where nothing else has
// changed it since.
//
// Release removes everything that a node of Bowline left: pods, volumes, logs, cgroups, the owner
// file; then what Prepare did. It touches only what has our stamp or our record. It lists the
// machine before and after, and reports the difference.
package handover
