package guarantee

import (
	"fmt"
	"strings"
)

const pageHead = `# What the bridge promises for each kind of message

<!-- Generated from the rows of package guarantee: go generate ./guarantee -->

` + "`gobridge explain`" + ` says which of these rows hold for each filter of your config, and what would strengthen them;
` + "`gobridge explain --require no-source-side-loss`" + ` fails where the bridge itself could lose a message.

- **No loss** means that the bridge never drops the message. It is not exactly-once: a repetition is possible in every row, so
  destinations have to tolerate one.
- **Rows describe the packet**, not the route: what a publisher sends at QoS 0 falls under the rows of QoS 0, also when it comes
  through a filter of QoS 1 or 2. A filter of QoS 0 makes QoS 0 of everything.
- **A terminal action** is what becomes of a message that is given up: a dead letter, or a counted drop where the policy says so.
  A dead letter is no loss while its store lasts; in memory it ends with the process.
- **Outside** marks causes that the bridge cannot prevent.
- **A message is charged only for failures of its own.** While its destination cannot be reached, while the outbox is full or a
  store fails, and when a stop or a restart cuts it short, it is held or left with its source, uncharged.

The last column names the tests that prove a row; [development](development.md) says how to run them.

| id | messages | mode | when | verdict | what the bridge owes | tests |
|---|---|---|---|---|---|---|
`

// page renders docs/guarantees.md. tests names what proves a row, by its id.
func page(tests func(id string) string) string {
	var b strings.Builder
	b.WriteString(pageHead)
	words := false
	for _, r := range rows {
		if !words && !r.matrix() {
			words = true
			b.WriteString("\nSettings that the matrix does not speak of:\n\n| id | messages | mode | when | verdict | what the bridge owes |\n|---|---|---|---|---|---|\n")
		}
		verdict := r.Verdict.String()
		if r.Outside {
			verdict += ", outside"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s |", r.ID, r.Source, r.Mode, r.When, verdict, r.Then)
		if r.matrix() {
			fmt.Fprintf(&b, " %s |", tests(r.ID))
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// matrix tells whether the row is one of the matrix, which a test has to prove.
func (r *Row) matrix() bool { return len(r.ID) == 3 && r.ID[0] == 'G' }
