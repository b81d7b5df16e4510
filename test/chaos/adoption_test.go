package chaos

import "testing"

func (a *arena) testAdoption(t *testing.T) {}
func (a *arena) testJob(t *testing.T) {}
func (a *arena) testStatefulSet(t *testing.T) {}
