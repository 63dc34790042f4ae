//go:build !unix

package bridgetest

import "runtime"

// freeze fails the test: there is no signal for it here.
func freeze(p *Process) { p.t.Errorf("pause %s: not possible on %s", p.name, runtime.GOOS) }

// thaw has nothing to do where nothing can be frozen.
func thaw(*Process) {}
