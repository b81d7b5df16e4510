// Package handover prepares a machine to be a node, and hands it back.
//
// Prepare shows and does the mends that are safe, each decided purely from what
// hostcheck found (Decide). What was done is recorded on the machine, with what was
// there before, in one file below the root directory; the record is written before
// anything is changed. Undo brings back exactly that, where it is still as it was
// written.
//
// Release takes away all that a node of Bowline left: pods, volumes, logs, cgroups,
// the owner file; then what Prepare did. It touches what bears our stamp or has our
// record, and nothing else, and it says by a listing of the machine what has changed.
package handover
