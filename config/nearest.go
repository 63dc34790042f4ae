package config

// nearest returns the candidate that key was most likely meant to be, or "".
// A key that is (nearly) the beginning of a candidate counts as close to it:
// session_expiry for session_expiry_interval.
func nearest(key string, candidates []string) string {
	best, bestScore := "", max(len(key)/3, 1)+1
	for _, c := range candidates {
		score := editDistance(key, c)
		for n := len(key) - 1; n <= len(key)+1; n++ {
			if len(key) >= 4 && n < len(c) && n > 0 {
				score = min(score, editDistance(key, c[:n])+1)
			}
		}
		if score < bestScore {
			best, bestScore = c, score
		}
	}
	return best
}

// editDistance counts the insertions, deletions, replacements and swaps of
// neighbours that make b of a. Letter case and the choice between - and _ are
// free. Keys longer than 64 bytes are far from everything.
func editDistance(a, b string) int {
	const longest = 64
	if len(a) > longest || len(b) > longest {
		return longest
	}
	var rows [3][longest + 1]int
	before, last, row := &rows[0], &rows[1], &rows[2]
	for j := range len(b) + 1 {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if fold(a[i-1]) == fold(b[j-1]) {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && fold(a[i-1]) == fold(b[j-2]) && fold(a[i-2]) == fold(b[j-1]) {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}

func fold(c byte) byte {
	switch {
	case 'A' <= c && c <= 'Z':
		return c + 'a' - 'A'
	case c == '-':
		return '_'
	}
	return c
}
