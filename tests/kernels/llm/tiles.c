/* AMX tiles of bytes, as the processor's manual describes them. */

#include <stdint.h>
#include <string.h>

static __thread struct {
  uint8_t data[16][64];
  int rows, columns;
} tiles[8];

static __thread uint8_t asked[64];

void emulated_sttilecfg(uint8_t *to) { memcpy(to, asked, sizeof asked); }

void emulated_ldtilecfg(const uint8_t *from) {
  memcpy(asked, from, sizeof asked);
  for (int t = 0; t < 8; t++) {
    tiles[t].columns = from[16 + 2 * t] + 256 * from[17 + 2 * t];
    tiles[t].rows = from[48 + t];
    memset(tiles[t].data, 0, sizeof tiles[t].data);
  }
}

void emulated_tilezero(int8_t t) { memset(tiles[t].data, 0, sizeof tiles[t].data); }

void emulated_tileloadd64(int8_t t, const uint8_t *from, int64_t apart) {
  emulated_tilezero(t);
  for (int r = 0; r < tiles[t].rows; r++)
    memcpy(tiles[t].data[r], from + r * apart, tiles[t].columns);
}

void emulated_tilestored64(int8_t t, uint8_t *to, int64_t apart) {
  for (int r = 0; r < tiles[t].rows; r++)
    memcpy(to + r * apart, tiles[t].data[r], tiles[t].columns);
}

void emulated_tdpbssd(int8_t sums, int8_t left, int8_t right) {
  for (int m = 0; m < tiles[sums].rows; m++) {
    int32_t made[16];
    memcpy(made, tiles[sums].data[m], sizeof made);
    for (int k = 0; k < tiles[left].columns / 4; k++)
      for (int n = 0; n < tiles[sums].columns / 4; n++)
        for (int i = 0; i < 4; i++)
          made[n] += (int8_t)tiles[left].data[m][4 * k + i] * (int8_t)tiles[right].data[k][4 * n + i];
    memcpy(tiles[sums].data[m], made, sizeof made);
  }
}
